//! A server that has `SET .. IFEQ`, or says so.
//!
//! The command is emulated, unless the `redis-server` of this host has it: these tests usually run
//! without Valkey 8.1 or Redis 8.4. A front passes everything to a real server, except two
//! requests, which it turns into scripts. `INFO` shows the version that a test wants.
//! `SET key value IFEQ expected PX ms` behaves as those servers' documentation says. So this tests
//! the store's reaction to the answers, not the servers.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// The version that the front's server reports to new connections, and its behaviour.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Says {
    pub(crate) redis: &'static str,
    pub(crate) valkey: Option<&'static str>,
    /// It does not know the command, whatever it says.
    pub(crate) refuses: bool,
}

pub(crate) const VALKEY_8_1: Says = Says {
    redis: "7.2.4",
    valkey: Some("8.1.0"),
    refuses: false,
};

/// The front, which lives as long as the tokio runtime in which it was started.
pub(crate) struct Front {
    port: u16,
    says: Arc<Mutex<Says>>,
}

impl Front {
    /// Starts one before the server at a port of this host.
    pub(crate) async fn start(server: u16, says: Says) -> Self {
        let emulates = !has_the_command(server).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let says = Arc::new(Mutex::new(says));
        let current = says.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let says = *current.lock().unwrap_or_else(PoisonError::into_inner);
                tokio::spawn(pass_on(client, server, says, emulates));
            }
        });
        Self { port, says }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// From the next connection on.
    #[allow(dead_code, reason = "one of the test binaries does not change it")]
    pub(crate) fn says(&self, says: Says) {
        *self.says.lock().unwrap_or_else(PoisonError::into_inner) = says;
    }
}

async fn has_the_command(server: u16) -> bool {
    let mut stream = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
    stream
        .write_all(&request(&[
            "SET",
            "front:probe",
            "",
            "IFEQ",
            "nothing",
            "PX",
            "1",
        ]))
        .await
        .unwrap();
    stream.read_u8().await.unwrap() != b'-'
}

async fn pass_on(client: TcpStream, server: u16, says: Says, emulates: bool) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let requests = async {
        let mut read = Vec::new();
        while from_client
            .read_buf(&mut read)
            .await
            .is_ok_and(|length| length > 0)
        {
            let mut ready = Vec::new();
            let mut at = 0;
            while let Some((words, length)) = first_request(&read[at..]) {
                let instead = in_place_of(&words, says, emulates);
                ready.extend_from_slice(instead.as_deref().unwrap_or(&read[at..at + length]));
                at += length;
            }
            read.drain(..at);
            if to_server.write_all(&ready).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = requests => {}
        _ = tokio::io::copy(&mut from_server, &mut to_client) => {}
    }
}

/// `INFO`, with other versions.
const INFO: &str = r"
local info = redis.call('INFO', unpack(ARGV, 3))
info = string.gsub(info, 'valkey_version:[^\r]*\r\n', '')
local versions = 'redis_version:' .. ARGV[1] .. '\r\n'
if ARGV[2] ~= '' then
  versions = versions .. 'valkey_version:' .. ARGV[2] .. '\r\n'
end
return (string.gsub(info, 'redis_version:[^\r]*\r\n', versions))
";

/// `SET key value IFEQ expected PX ms`: nothing where another value is there, or none.
const COMPARE: &str = r"
if redis.call('GET', KEYS[1]) ~= ARGV[2] then
  return false
end
return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
";

const REFUSE: &str = "return redis.error_reply('ERR syntax error')";

/// What is sent in place of a request, if it is one of those.
fn in_place_of(words: &[&[u8]], says: Says, emulates: bool) -> Option<Vec<u8>> {
    match words {
        [info, sections @ ..] if info.eq_ignore_ascii_case(b"INFO") => {
            let fixed = [&b"EVAL"[..], INFO.as_bytes(), b"0", says.redis.as_bytes()];
            let valkey = says.valkey.unwrap_or_default().as_bytes();
            Some(request(&[&fixed, &[valkey][..], sections].concat()))
        }
        [b"SET", _, _, b"IFEQ", ..] if says.refuses => Some(request(&["EVAL", REFUSE, "0"])),
        &[b"SET", key, value, b"IFEQ", expected, b"PX", ms] if emulates => Some(request(&[
            b"EVAL",
            COMPARE.as_bytes(),
            b"1",
            key,
            value,
            expected,
            ms,
        ])),
        _ => None,
    }
}

fn request(words: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words.iter().map(AsRef::as_ref) {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// The words of the first request in some bytes, and its length, if all of it is there. Clients
/// send lists of words and nothing else.
fn first_request(bytes: &[u8]) -> Option<(Vec<&[u8]>, usize)> {
    let number = |at: usize| -> Option<(usize, usize)> {
        let length = bytes.get(at..)?.windows(2).position(|two| two == b"\r\n")?;
        let digits = std::str::from_utf8(&bytes[at + 1..at + length]).unwrap();
        Some((digits.parse().unwrap(), at + length + 2))
    };
    let (count, mut at) = number(0)?;
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        let (length, begin) = number(at)?;
        at = begin + length + 2;
        bytes.get(..at)?;
        words.push(&bytes[begin..begin + length]);
    }
    Some((words, at))
}
