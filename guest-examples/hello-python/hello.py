"""`hello-python/greet`: a pure action in Python, as small as one can be.

Build it with componentize-py (scripts/build-language-guests does), push it, and name it in a workflow as
`action: hello-python/greet`. What each export is for, and what it may touch, is in wit/action.wit.

How the interface looks from Python, through the `wit_world` that componentize-py makes of it:

    record   a dataclass, its names in snake_case; every field must be given
    enum     an Enum: EffectClass.PURE
    flags    a Flag: Hooks.PLAN | Hooks.RECONCILE, and Hooks(0) for none
    variant  a dataclass per case: Outcome_Succeeded(value)
    option   the value, or None
    result   return the `ok`, raise Err(...) for the `err`
    json     text: json.loads what comes in, json.dumps what goes out

Top-level code runs when the component is built, not when it is called: componentize-py keeps the interpreter as it is
after importing this module. So imports cost nothing at run time, and nothing here may read a clock or make a secret.
"""

import json

from componentize_py_types import Err
from wit_world import exports
from wit_world.imports.tollgate_action_types import (
    ActionDescriptor,
    Context,
    EffectClass,
    Failure,
    Fate,
    Hooks,
    Limits,
    Outcome,
    Outcome_Succeeded,
    Planned,
)

CONFIG_SCHEMA = {
    "type": "object",
    "required": ["name"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "minLength": 1, "description": "Whom to greet."},
    },
}

OUTPUT_SCHEMA = {
    "type": "object",
    "required": ["greeting"],
    "additionalProperties": False,
    "properties": {
        "greeting": {"type": "string"},
    },
}


class Actions(exports.Actions):
    """The name of the class is that of the interface that the world exports."""

    def describe(self) -> list[ActionDescriptor]:
        """Called once, when the component is uploaded. The host keeps the answer."""
        return [
            ActionDescriptor(
                name="greet",
                title="Greet somebody",
                description="Says hello to whoever is named.",
                # Computes and nothing else, so that the host can repeat it at will.
                effect_class=EffectClass.PURE,
                # None of the three optional exports means anything here, and none is ever called.
                hooks=Hooks(0),
                config_schema=json.dumps(CONFIG_SCHEMA),
                output_schema=json.dumps(OUTPUT_SCHEMA),
                http=[],
                meters=[],
                limits=Limits(memory_bytes=None, cpu_ms=None, wall_ms=None, requests=None),
            )
        ]

    def run(self, action: str, context: Context, config: str) -> Outcome:
        """`config` has passed CONFIG_SCHEMA by the time it gets here."""
        name = json.loads(config)["name"]
        return Outcome_Succeeded(json.dumps({"greeting": f"Hello, {name}!"}))

    # WIT has no optional exports: these must be there, and are not called because `hooks` does not declare them.

    def authorize(self, action: str, context: Context, config: str) -> None:
        pass

    def plan(self, action: str, context: Context, config: str) -> Planned:
        raise Err(not_declared("plan"))

    def reconcile(self, action: str, context: Context, config: str) -> Fate:
        raise Err(not_declared("reconcile"))


def not_declared(name: str) -> Failure:
    return Failure(
        message=f"this action has no {name}", code=None, retryable=False, retry_after_ms=None, details=None
    )
