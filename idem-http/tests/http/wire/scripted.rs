//! Servers that do what a script says: one in place of the network, and one at a real port.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use http::{Extensions, HeaderMap};
use reqwest::{Request, Response};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next, Result};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use idem_http::IdempotencyClient;

/// The server's action on one request.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    /// The connection ends before the request is read.
    Cut,
    /// The request is read, and the connection ends without a response.
    LoseReply,
    /// The connection ends within the body of the response.
    HalfReply,
    /// The server does not respond, and the connection stays.
    Hang,
    Reply(u16, Vec<(&'static str, String)>, &'static str),
}

pub(crate) fn reply(status: u16) -> Act {
    Act::Reply(status, Vec::new(), "text")
}

/// A reply with one header.
pub(crate) fn hinted(status: u16, name: &'static str, value: &str) -> Act {
    Act::Reply(status, vec![(name, value.to_owned())], "text")
}

/// A request as the server got it.
#[derive(Debug, Clone)]
pub(crate) struct Got {
    pub(crate) line: String,
    pub(crate) headers: HeaderMap,
    pub(crate) at: Instant,
}

impl Got {
    /// All keys that the request carried.
    pub(crate) fn keys(&self) -> Vec<&str> {
        self.headers
            .get_all("idempotency-key")
            .iter()
            .map(|value| value.to_str().unwrap())
            .collect()
    }
}

#[derive(Clone, Default)]
pub(crate) struct Script {
    acts: Arc<Mutex<VecDeque<Act>>>,
    got: Arc<Mutex<Vec<Got>>>,
}

impl Script {
    pub(crate) fn new(acts: impl IntoIterator<Item = Act>) -> Self {
        let script = Self::default();
        script.acts.lock().unwrap().extend(acts);
        script
    }

    fn next(&self, got: Got) -> Act {
        self.got.lock().unwrap().push(got);
        self.acts
            .lock()
            .unwrap()
            .pop_front()
            .expect("the script has ended")
    }

    pub(crate) fn got(&self) -> Vec<Got> {
        self.got.lock().unwrap().clone()
    }

    /// The one key of all requests.
    pub(crate) fn key(&self) -> String {
        let got = self.got();
        let [key] = got[0].keys()[..] else {
            panic!("no single key: {got:?}")
        };
        assert!(got.iter().all(|got| got.keys() == [key]), "{got:?}");
        key.to_owned()
    }

    /// The pauses between the requests, in milliseconds.
    pub(crate) fn pauses(&self) -> Vec<u128> {
        self.got()
            .windows(2)
            .map(|pair| (pair[1].at - pair[0].at).as_millis())
            .collect()
    }

    /// A client whose network is this script. Time may be paused.
    pub(crate) fn client(&self, idempotent: IdempotencyClient) -> ClientWithMiddleware {
        ClientBuilder::new(super::reqwest_builder().build().unwrap())
            .with(idempotent)
            .with(self.clone())
            .build()
    }

    /// Serves the script at a port of this machine, until the runtime ends.
    pub(crate) async fn serve(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let script = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let script = script.clone();
                tokio::spawn(async move { script.answer(stream).await });
            }
        });
        address
    }

    async fn answer(&self, mut stream: TcpStream) -> Option<()> {
        if matches!(self.acts.lock().unwrap().front(), Some(Act::Cut)) {
            self.acts.lock().unwrap().pop_front();
            return None;
        }
        let (line, headers, _) = read_request(&mut stream).await?;
        match self.next(Got {
            line,
            headers,
            at: Instant::now(),
        }) {
            Act::Cut | Act::LoseReply => {}
            Act::Hang => std::future::pending().await,
            Act::HalfReply => {
                stream
                    .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
                    .await
                    .ok()?;
            }
            Act::Reply(status, headers, body) => {
                let headers: String = headers
                    .into_iter()
                    .map(|(name, value)| [name, ": ", &value, "\r\n"].concat())
                    .collect();
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: \
                     {length}\r\n{headers}"
                );
                stream
                    .write_all(format!("{head}\r\n{body}").as_bytes())
                    .await
                    .ok()?;
            }
        }
        Some(())
    }
}

#[async_trait::async_trait]
impl Middleware for Script {
    async fn handle(&self, request: Request, _: &mut Extensions, _: Next<'_>) -> Result<Response> {
        let line = format!("{} {}", request.method(), request.url());
        match self.next(Got {
            line,
            headers: request.headers().clone(),
            at: Instant::now(),
        }) {
            Act::Reply(status, headers, body) => {
                let mut response = http::Response::new(body);
                *response.status_mut() = status.try_into().unwrap();
                for (name, value) in headers {
                    response.headers_mut().append(name, value.parse().unwrap());
                }
                Ok(response.into())
            }
            Act::Hang => std::future::pending().await,
            act => panic!("{act:?} needs a real connection"),
        }
    }
}

/// Reads a request: its first line, its headers, and all of its bytes. `None` if the connection
/// ends before.
pub(crate) async fn read_request(stream: &mut TcpStream) -> Option<(String, HeaderMap, Vec<u8>)> {
    read_from(stream).await
}

/// The same from any stream.
pub(crate) async fn read_from(
    stream: &mut (impl AsyncRead + Unpin),
) -> Option<(String, HeaderMap, Vec<u8>)> {
    let mut bytes = Vec::new();
    loop {
        let mut chunk = [0; 4096];
        let head = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        if let Some(head) = head {
            let text = String::from_utf8_lossy(&bytes[..head]).into_owned();
            let mut lines = text.lines();
            let line = lines.next()?.to_owned();
            let mut headers = HeaderMap::new();
            for (name, value) in lines.filter_map(|line| line.split_once(':')) {
                let name: http::HeaderName = name.parse().ok()?;
                headers.append(name, value.trim().parse().ok()?);
            }
            let length = headers
                .get("content-length")
                .map_or(0, |value| value.to_str().unwrap().parse().unwrap());
            if bytes.len() >= head + 4 + length {
                return Some((line, headers, bytes));
            }
        }
        let read = stream.read(&mut chunk).await.ok()?;
        if read == 0 {
            return None;
        }
        bytes.extend(&chunk[..read]);
    }
}
