//! A port that stays ours while its server is down.

use std::io;
use std::net::Ipv4Addr;

use tokio::net::TcpSocket;

/// A port of `127.0.0.1` that belongs to this value until it is dropped.
///
/// A socket is bound to it and never listens. So connections to the port are refused, nobody else
/// is given it by binding to port 0, and no outgoing connection can use it. A server that sets
/// `SO_REUSEADDR`, as servers do to restart, can still bind to it, listen, die and come back.
///
/// Linux allows that. On other systems the port is only looked up, and may be taken by another
/// process.
///
/// # Examples
///
/// ```
/// use idem_testkit::HeldPort;
///
/// # fn main() -> std::io::Result<()> {
/// let port = HeldPort::hold()?;
/// // Nobody listens there.
/// assert!(std::net::TcpStream::connect(("127.0.0.1", port.port())).is_err());
/// // A server can.
/// let server = std::net::TcpListener::bind(("127.0.0.1", port.port()))?;
/// assert!(std::net::TcpStream::connect(("127.0.0.1", port.port())).is_ok());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct HeldPort {
    port: u16,
    /// `None` on systems that bind only one socket to a port.
    _socket: Option<TcpSocket>,
}

impl HeldPort {
    /// Holds a port that the system chooses.
    ///
    /// # Errors
    ///
    /// If the system has no port left, or no socket.
    pub fn hold() -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        // Both sides must set it: the server does so itself.
        socket.set_reuseaddr(true)?;
        socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
        let port = socket.local_addr()?.port();
        Ok(Self {
            port,
            _socket: cfg!(target_os = "linux").then_some(socket),
        })
    }

    /// Returns its number.
    pub fn port(&self) -> u16 {
        self.port
    }
}
