//! As much of the Redis protocol as it takes to send a command and to read its reply.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

const LIMIT: Duration = Duration::from_secs(5);

/// The reply of a server to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// A status, such as `OK`.
    Status(String),
    /// An error, with its code.
    Error(String),
    /// A number.
    Number(i64),
    /// A value.
    Value(Vec<u8>),
    /// No value.
    Nil,
    /// Several replies.
    List(Vec<Reply>),
}

impl Reply {
    /// The bytes of a value or status.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Value(bytes) => Some(bytes),
            Self::Status(text) => Some(text.as_bytes()),
            _ => None,
        }
    }

    /// The number.
    pub fn number(&self) -> Option<i64> {
        match self {
            Self::Number(number) => Some(*number),
            _ => None,
        }
    }
}

/// Readable text: replacement characters for values that are not UTF-8, lists with one reply a
/// line.
impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(text) | Self::Error(text) => f.write_str(text),
            Self::Number(number) => write!(f, "{number}"),
            Self::Value(bytes) => f.write_str(&String::from_utf8_lossy(bytes)),
            Self::Nil => f.write_str("(nil)"),
            Self::List(replies) => replies.iter().try_for_each(|reply| writeln!(f, "{reply}")),
        }
    }
}

/// Sends a command on a connection of its own.
pub(super) async fn call(port: u16, command: &[impl AsRef<[u8]>]) -> io::Result<Reply> {
    let mut request = format!("*{}\r\n", command.len()).into_bytes();
    for word in command.iter().map(AsRef::as_ref) {
        request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        request.extend_from_slice(word);
        request.extend_from_slice(b"\r\n");
    }
    let exchange = async {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.write_all(&request).await?;
        read(&mut BufReader::new(stream)).await
    };
    tokio::time::timeout(LIMIT, exchange).await?
}

/// Whether a server answers, if only that it wants a password.
pub(super) async fn answers(port: u16) -> bool {
    match call(port, &["PING"]).await {
        Ok(Reply::Error(error)) => !error.starts_with("LOADING"),
        Ok(_) => true,
        Err(_) => false,
    }
}

fn read(
    stream: &mut BufReader<TcpStream>,
) -> Pin<Box<dyn Future<Output = io::Result<Reply>> + Send + '_>> {
    // Boxed, since a list holds replies.
    Box::pin(async move {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let line = line.trim_end();
        let (kind, rest) = line
            .split_at_checked(1)
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        let number = || rest.parse::<i64>().map_err(|_| unknown(line));
        Ok(match kind {
            "+" => Reply::Status(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Number(number()?),
            "$" => match usize::try_from(number()?) {
                Ok(length) => {
                    let mut value = vec![0; length + 2];
                    stream.read_exact(&mut value).await?;
                    value.truncate(length);
                    Reply::Value(value)
                }
                Err(_) => Reply::Nil,
            },
            "*" => match usize::try_from(number()?) {
                Ok(length) => {
                    let mut replies = Vec::new();
                    for _ in 0..length {
                        replies.push(read(stream).await?);
                    }
                    Reply::List(replies)
                }
                Err(_) => Reply::Nil,
            },
            _ => return Err(unknown(line)),
        })
    })
}

fn unknown(line: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("no reply that this client knows: {line:?}"),
    )
}
