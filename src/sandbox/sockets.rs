//! `wasi:sockets`: refused where a guest begins, with a record of it.
//!
//! Only what makes a socket or looks up a name is here; without one, no other function of the package can be called. A
//! refusal at the connection would come too late: by then the socket exists, and a guest could use up those of the process.

use wasmtime::component::{HasSelf, Linker, Resource};
use wasmtime_wasi::p2::bindings::sockets::ip_name_lookup::ResolveAddressStream;
use wasmtime_wasi::p2::bindings::sockets::network::{self, ErrorCode, IpAddress, IpAddressFamily, Network};
use wasmtime_wasi::p2::bindings::sockets::{ip_name_lookup, tcp_create_socket, udp_create_socket};
use wasmtime_wasi::p2::{DynPollable, SocketError, SocketResult};

use super::host::Refused;
use super::state::GuestState;

/// Replaces the functions with which `wasi:sockets` begins.
pub(super) fn refuse(linker: &mut Linker<GuestState>) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    tcp_create_socket::add_to_linker::<_, HasSelf<GuestState>>(linker, |state| state)?;
    udp_create_socket::add_to_linker::<_, HasSelf<GuestState>>(linker, |state| state)?;
    ip_name_lookup::add_to_linker::<_, HasSelf<GuestState>>(linker, |state| state)?;
    linker.allow_shadowing(false);
    Ok(())
}

impl GuestState {
    fn refuse_sockets<T>(&self, what: &str) -> SocketResult<T> {
        self.shared.egress.deny(format!("wasi:sockets/{what}"), "sockets are refused in every phase", "");
        Err(ErrorCode::AccessDenied.into())
    }
}

impl network::Host for GuestState {
    fn convert_error_code(&mut self, error: SocketError) -> wasmtime::Result<ErrorCode> {
        error.downcast()
    }

    fn network_error_code(&mut self, _error: Resource<wasmtime::Error>) -> wasmtime::Result<Option<ErrorCode>> {
        Ok(None)
    }
}

/// Asked for by the trait above alone: the resource itself is wasmtime's.
impl network::HostNetwork for GuestState {
    fn drop(&mut self, _network: Resource<Network>) -> wasmtime::Result<()> {
        Ok(())
    }
}

impl tcp_create_socket::Host for GuestState {
    fn create_tcp_socket(&mut self, _family: IpAddressFamily) -> SocketResult<Resource<tcp_create_socket::TcpSocket>> {
        self.refuse_sockets("tcp-create-socket")
    }
}

impl udp_create_socket::Host for GuestState {
    async fn create_udp_socket(
        &mut self,
        _family: IpAddressFamily,
    ) -> SocketResult<Resource<udp_create_socket::UdpSocket>> {
        self.refuse_sockets("udp-create-socket")
    }
}

impl ip_name_lookup::Host for GuestState {
    fn resolve_addresses(
        &mut self,
        _network: Resource<Network>,
        name: String,
    ) -> SocketResult<Resource<ResolveAddressStream>> {
        self.refuse_sockets(&format!("ip-name-lookup of {}", &name[..name.floor_char_boundary(NAME_BYTES_MAX)]))
    }
}

/// The longest name that a refusal shows whole: what DNS allows.
const NAME_BYTES_MAX: usize = 255;

/// No stream is ever made.
impl ip_name_lookup::HostResolveAddressStream for GuestState {
    fn resolve_next_address(&mut self, _stream: Resource<ResolveAddressStream>) -> SocketResult<Option<IpAddress>> {
        Err(ErrorCode::InvalidState.into())
    }

    fn subscribe(&mut self, _stream: Resource<ResolveAddressStream>) -> wasmtime::Result<Resource<DynPollable>> {
        Err(Refused("no name is ever being looked up".to_owned()).into())
    }

    fn drop(&mut self, _stream: Resource<ResolveAddressStream>) -> wasmtime::Result<()> {
        Ok(())
    }
}
