//! The actions of bodies, in the order in which a Redis received them: each line is sent, and
//! answered, inside one poll of the body.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Mutex;

use idem_testkit::{RedisServer, Reply};

/// A body's end of the log. It goes to the server directly, whatever the network before the store
/// does.
pub(crate) struct Log {
    name: String,
    stream: Mutex<BufReader<TcpStream>>,
}

impl Log {
    pub(crate) fn open(port: u16, name: &str) -> Self {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self {
            name: format!("log:{name}"),
            stream: Mutex::new(BufReader::new(stream)),
        }
    }

    /// A body, or one try of it, has begun.
    pub(crate) fn begins(&self, attempt: u64) {
        self.write("begins", attempt);
    }

    /// A body goes on.
    pub(crate) fn goes_on(&self, attempt: u64) {
        self.write("goes-on", attempt);
    }

    /// It asks what became of an attempt before.
    pub(crate) fn asks(&self, attempt: u64) {
        self.write("asks", attempt);
    }

    fn write(&self, what: &str, attempt: u64) {
        let mut stream = self.stream.lock().unwrap();
        // Without awaiting, so that it is done before the body can be stopped.
        let line = format!("RPUSH {} {what}:{attempt}\r\n", self.name);
        stream.get_mut().write_all(line.as_bytes()).unwrap();
        stream.read_line(&mut String::new()).unwrap();
    }
}

/// The contents of a log.
#[derive(Debug, Default)]
pub(crate) struct Lines(Vec<(String, u64)>);

impl Lines {
    pub(crate) async fn read(server: &RedisServer, name: &str) -> Self {
        let reply = server
            .cli(&["LRANGE", &format!("log:{name}"), "0", "-1"])
            .await
            .unwrap();
        let Reply::List(lines) = reply else {
            panic!("{reply:?}")
        };
        let line = |reply: Reply| {
            let (what, attempt) = reply
                .to_string()
                .split_once(':')
                .map(|(a, b)| (a.to_owned(), b.to_owned()))
                .unwrap();
            (what, attempt.parse().unwrap())
        };
        Self(lines.into_iter().map(line).collect())
    }

    pub(crate) fn has(&self, what: &str) -> bool {
        self.0.iter().any(|(line, _)| line == what)
    }

    pub(crate) fn lines(&self) -> usize {
        self.0.len()
    }

    /// How many bodies have begun.
    pub(crate) fn bodies(&self) -> usize {
        self.0.iter().filter(|(what, _)| what == "begins").count()
    }

    /// Whether no body did anything after one of a later attempt had begun.
    pub(crate) fn one_at_a_time(&self) -> bool {
        self.0.is_sorted_by_key(|(_, attempt)| *attempt)
    }
}
