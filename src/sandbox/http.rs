//! `wasi:http` on this side of the sandbox: every request goes through egress, and nowhere else.

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use wasmtime_wasi_http::{Error, RequestOptions, WasiBody, WasiHttpHooks};

use crate::egress::{Egress, EgressError, Outgoing};

/// Hands every outgoing request of one instance to its attempt's egress.
pub(super) struct HttpHooks {
    egress: Egress,
}

impl HttpHooks {
    pub fn new(egress: Egress) -> HttpHooks {
        HttpHooks { egress }
    }
}

type Worker = Box<dyn Future<Output = Result<(), Error>> + Send>;
type Answer = Result<(http::Response<WasiBody>, Worker), Error>;

impl WasiHttpHooks for HttpHooks {
    fn send_request(
        &mut self,
        request: http::Request<WasiBody>,
        options: Option<RequestOptions>,
        _processed: Box<dyn Future<Output = Result<(), Error>> + Send>,
    ) -> Box<dyn Future<Output = Answer> + Send> {
        let options = options.unwrap_or_default();
        let (head, body) = request.into_parts();
        let outgoing = Outgoing {
            method: head.method,
            url: head.uri.to_string(),
            headers: head.headers,
            connect_timeout: options.connect_timeout,
            first_byte_timeout: options.first_byte_timeout,
        };
        let admitted = match self.egress.admit(outgoing) {
            Ok(admitted) => admitted,
            Err(error) => {
                let error = for_guest(error);
                return Box::new(async move { Err(error) });
            }
        };
        let answer = self.egress.send(admitted, collect(body, self.egress.clone()));
        Box::new(async move {
            let response = answer.await.map_err(for_guest)?;
            let response = response.map(|bytes| Full::new(bytes).map_err(|never| match never {}).boxed_unsync());
            Ok((response, Box::new(async { Ok(()) }) as Worker))
        })
    }
}

/// The whole body, or why there is none. What does not fit the limit is never held.
async fn collect(mut body: WasiBody, egress: Egress) -> Result<Bytes, EgressError> {
    let limit = egress.request_bytes_max();
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| EgressError::Broken(format!("its body broke off: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if whole.len() as u64 + data.len() as u64 > limit {
            return Err(egress.request_too_large());
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.freeze())
}

/// `internal-error` is the one code that carries a text, and a guest that shows it shows what to do.
fn for_guest(error: EgressError) -> Error {
    match error {
        EgressError::Timeout(_) => Error::ConnectionReadTimeout,
        EgressError::Denied(_) | EgressError::Limit(_) | EgressError::Broken(_) => {
            Error::InternalError(Some(error.to_string()))
        }
    }
}
