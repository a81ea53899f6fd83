//! A network that fails once for each key.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};

/// The fault of the first request of each key. Later requests pass.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Pass,
    /// It is carried out, and the connection ends without a response.
    LoseReply,
    /// The connection ends in the body of the response.
    HalfReply,
    /// The connection ends in the body of the request.
    CutRequest,
    /// The response stops in its body, and the connection stays.
    Stall,
}

impl Fault {
    pub(crate) const ALL: [Self; 5] = [
        Self::Pass,
        Self::LoseReply,
        Self::HalfReply,
        Self::CutRequest,
        Self::Stall,
    ];

    /// The variable that tells the scripts its address.
    pub(crate) fn variable(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::LoseReply => "LOSE_REPLY",
            Self::HalfReply => "HALF_REPLY",
            Self::CutRequest => "CUT_REQUEST",
            Self::Stall => "STALL",
        }
    }
}

/// A proxy with a fault. It lasts as long as the process.
pub(crate) struct Faulty {
    fault: Fault,
    address: SocketAddr,
}

impl Faulty {
    pub(crate) fn start(server: &str, fault: Fault) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let server = server.to_owned();
        let seen = Arc::<Mutex<BTreeSet<String>>>::default();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = server.clone();
                let seen = seen.clone();
                // A connection that breaks is the client's business.
                std::thread::spawn(move || drop(pass(client, &server, fault, &seen)));
            }
        });
        Ok(Self { fault, address })
    }

    pub(crate) fn fault(&self) -> Fault {
        self.fault
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Passes one request on, and its response back. Each connection has one.
fn pass(
    mut client: TcpStream,
    server: &str,
    fault: Fault,
    seen: &Mutex<BTreeSet<String>>,
) -> Result<()> {
    let request = read_message(&mut client)?;
    let key = request.header("idempotency-key").unwrap_or_default();
    let is_first = !key.is_empty()
        && seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(key);
    let fault = if is_first { fault } else { Fault::Pass };
    let mut behind = TcpStream::connect(server)?;
    if fault == Fault::CutRequest {
        let half = request.head + (request.bytes.len() - request.head) / 2;
        behind.write_all(request.bytes.get(..half).unwrap_or_default())?;
        return Ok(());
    }
    behind.write_all(&request.bytes)?;
    let response = read_message(&mut behind)?;
    // The next request has a connection of its own, and the client must know.
    let line = response
        .bytes
        .windows(2)
        .position(|pair| pair == b"\r\n")
        .context("no first line")?
        + 2;
    let (first, rest) = response.bytes.split_at(line);
    let answer = [first, b"connection: close\r\n", rest].concat();
    let half = answer.len() - (response.bytes.len() - response.head) / 2;
    match fault {
        Fault::LoseReply | Fault::CutRequest => {}
        Fault::Pass => client.write_all(&answer)?,
        Fault::HalfReply => client.write_all(answer.get(..half).unwrap_or_default())?,
        Fault::Stall => {
            client.write_all(answer.get(..half).unwrap_or_default())?;
            // Until the client has had enough.
            client.set_read_timeout(Some(Duration::from_secs(20)))?;
            while client.read(&mut [0; 64])? > 0 {}
        }
    }
    client.shutdown(Shutdown::Write)?;
    Ok(())
}

/// A request or a response with a stated length.
struct Message {
    bytes: Vec<u8>,
    /// The length of its head.
    head: usize,
}

impl Message {
    fn header(&self, name: &str) -> Option<String> {
        let head = String::from_utf8_lossy(self.bytes.get(..self.head)?);
        let mut pairs = head.lines().filter_map(|line| line.split_once(':'));
        pairs
            .find(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim().to_owned())
    }
}

fn read_message(stream: &mut TcpStream) -> Result<Message> {
    let mut message = Message {
        bytes: Vec::new(),
        head: 0,
    };
    let mut chunk = [0; 4096];
    loop {
        if message.head == 0
            && let Some(end) = message
                .bytes
                .windows(4)
                .position(|window| window == b"\r\n\r\n")
        {
            message.head = end + 4;
        }
        if message.head > 0 {
            let length: usize = message
                .header("content-length")
                .map_or(Ok(0), |length| length.parse())?;
            if message.bytes.len() >= message.head + length {
                return Ok(message);
            }
        }
        let read = stream.read(&mut chunk)?;
        anyhow::ensure!(read > 0, "the connection has ended");
        message.bytes.extend(chunk.iter().take(read));
    }
}
