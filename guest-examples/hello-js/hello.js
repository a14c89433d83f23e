// `hello-js/greet`: a pure action in JavaScript, as small as one can be.
//
// Build it with componentize-js (scripts/build-language-guests does), push it, and name it in a workflow as
// `action: hello-js/greet`. What each export is for, and what it may touch, is in wit/action.wit.
//
// How the interface looks from JavaScript:
//   record   an object, its names in camelCase: `effectClass`, `configSchema`
//   enum     a string, as in the WIT: 'pure'
//   flags    an object of booleans; what is missing is false
//   variant  { tag, val }
//   option   the value, or undefined
//   result   return the `ok`, throw the `err`
//   u64      a BigInt; u32 a number
//   json     text: JSON.parse what comes in, JSON.stringify what goes out

// The names of the object and of its functions are those of the interface that the world exports.
export const actions = {
  // Called once, when the component is uploaded. The host keeps the answer.
  describe() {
    return [
      {
        name: 'greet',
        title: 'Greet somebody',
        description: 'Says hello to whoever is named.',
        // Computes and nothing else, so that the host can repeat it at will.
        effectClass: 'pure',
        // None of the three optional exports means anything here, and none is ever called.
        hooks: { authorize: false, plan: false, reconcile: false },
        configSchema: JSON.stringify(configSchema),
        outputSchema: JSON.stringify(outputSchema),
        http: [],
        meters: [],
        limits: {},
      },
    ];
  },

  // `config` has passed configSchema by the time it gets here.
  run(_action, _context, config) {
    const { name } = JSON.parse(config);
    return { tag: 'succeeded', val: JSON.stringify({ greeting: `Hello, ${name}!` }) };
  },

  // WIT has no optional exports: these must be there, and are not called because `hooks` does not declare them.

  authorize() {},

  plan() {
    throw notDeclared('plan');
  },

  reconcile() {
    throw notDeclared('reconcile');
  },
};

const configSchema = {
  type: 'object',
  required: ['name'],
  additionalProperties: false,
  properties: {
    name: { type: 'string', minLength: 1, description: 'Whom to greet.' },
  },
};

const outputSchema = {
  type: 'object',
  required: ['greeting'],
  additionalProperties: false,
  properties: {
    greeting: { type: 'string' },
  },
};

// A `failure` of the interface, for an `err`.
function notDeclared(name) {
  return { message: `this action has no ${name}`, retryable: false };
}
