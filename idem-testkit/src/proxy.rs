//! A faulty network between a client and a server.

mod frames;
mod passing;

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use self::frames::{Frame, ReplyKind};
pub use self::passing::{Mishap, Passing};
use crate::fault::Gate;

/// A TCP proxy that can cut connections, swallow replies and delay them; and, where the two speak
/// as Redis does, lose or hold single requests and replies.
///
/// It runs in the tokio runtime in which it was started, and ends, with all its connections, when
/// it is dropped.
///
/// # Examples
///
/// ```no_run
/// use idem_testkit::{Mishap, Proxy, RedisServer};
///
/// # async fn example() -> std::io::Result<()> {
/// let server = RedisServer::start().await?;
/// let proxy = Proxy::start(&server.url()).await?;
/// // Connect to proxy.url(), then:
/// proxy.swallow_replies(true); // requests are carried out, and their replies are lost
/// proxy.restore();
/// let increments = proxy.passing(|words| words[0] == b"INCR");
/// increments.next(Mishap::LoseReply); // the next one is carried out, and the connection ends
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    mode: Arc<watch::Sender<Mode>>,
    kinds: Kinds,
    listening: JoinHandle<()>,
}

/// The kinds of requests that tests asked for; a request is of the first that it fits.
type Kinds = Arc<RwLock<Vec<Passing>>>;

#[derive(Debug, Clone, Copy, Default)]
struct Mode {
    cut: bool,
    swallow: bool,
    delay: Duration,
}

impl Proxy {
    /// Starts one before a server, which is given as `host:port` or as a URL with both.
    ///
    /// # Errors
    ///
    /// If no port can be listened at.
    pub async fn start(upstream: &str) -> io::Result<Self> {
        Self::start_as(upstream, true).await
    }

    /// Starts one before a server of another protocol, of which it knows nothing: it can cut,
    /// swallow and delay.
    ///
    /// # Errors
    ///
    /// If no port can be listened at.
    pub async fn start_opaque(upstream: &str) -> io::Result<Self> {
        Self::start_as(upstream, false).await
    }

    async fn start_as(upstream: &str, is_redis: bool) -> io::Result<Self> {
        let address = upstream.split_once("://").map_or(upstream, |(_, rest)| rest);
        let address: Arc<str> = address.split(['/', '?']).next().unwrap_or_default().into();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let mode = Arc::new(watch::Sender::new(Mode::default()));
        let kinds = Kinds::default();
        let listening = tokio::spawn(listen(listener, address, mode.subscribe(), kinds.clone(), is_redis));
        Ok(Self { port, mode, kinds, listening })
    }

    /// Returns the URL for Redis clients.
    pub fn url(&self) -> String {
        format!("redis://{}/", self.address())
    }

    /// Returns the address for any client.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The requests whose words are such: to count them, and to have single ones go wrong. Of
    /// several kinds that a request fits, it is of the one that was asked for first.
    pub fn passing(&self, is_one: impl Fn(&[&[u8]]) -> bool + Send + Sync + 'static) -> Passing {
        let kind = Passing::new(is_one);
        self.kinds.write().unwrap_or_else(PoisonError::into_inner).push(kind.clone());
        kind
    }

    /// Ends all connections, and each new one at once.
    pub fn cut(&self) {
        self.mode.send_modify(|mode| mode.cut = true);
    }

    /// Keeps replies from the client, while its requests reach the server. A connection that has
    /// missed a reply ends when replies are let through again, since what follows would answer
    /// other requests.
    pub fn swallow_replies(&self, swallow: bool) {
        self.mode.send_modify(|mode| mode.swallow = swallow);
    }

    /// Delays each reply.
    pub fn delay(&self, delay: Duration) {
        self.mode.send_modify(|mode| mode.delay = delay);
    }

    /// Does nothing of it any more. The mishaps of single requests stay as they are scripted.
    pub fn restore(&self) {
        self.mode.send_replace(Mode::default());
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cut();
        self.listening.abort();
    }
}

async fn listen(listener: TcpListener, upstream: Arc<str>, mode: watch::Receiver<Mode>, kinds: Kinds, is_redis: bool) {
    while let Ok((client, _)) = listener.accept().await {
        if !mode.borrow().cut {
            tokio::spawn(connect(client, Arc::clone(&upstream), mode.clone(), kinds.clone(), is_redis));
        }
    }
}

async fn connect(client: TcpStream, upstream: Arc<str>, mode: watch::Receiver<Mode>, kinds: Kinds, is_redis: bool) {
    // A server that is down looks to the client as it is: the connection ends.
    let Ok(server) = TcpStream::connect(&*upstream).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let mut cut = mode.clone();
    let pending = Pending { requests: Mutex::default(), is_redis };
    // Whichever ends first ends the connection, in both directions.
    tokio::select! {
        biased;
        _ = cut.wait_for(|mode| mode.cut) => {}
        () = requests(from_client, to_server, &kinds, &pending) => {}
        () = replies(from_server, to_client, mode, &pending) => {}
    }
}

/// The requests of one connection that were not answered yet, in their order.
struct Pending {
    requests: Mutex<VecDeque<Awaited>>,
    /// Of another protocol, nothing is known of where a request ends.
    is_redis: bool,
}

struct Awaited {
    /// How many replies it still gets: a subscription is confirmed for each channel.
    replies: usize,
    /// The mishap of the first of them.
    mishap: Mishap,
}

impl Pending {
    fn push(&self, words: &[&[u8]], mishap: Mishap) {
        let subscribes = words.first().is_some_and(|name| name.to_ascii_lowercase().ends_with(b"subscribe"));
        let replies = if subscribes { words.len().saturating_sub(1).max(1) } else { 1 };
        self.lock().push_back(Awaited { replies, mishap });
    }

    /// A reply has come. Says what goes wrong with it.
    fn answered(&self) -> Mishap {
        let mut pending = self.lock();
        let Some(first) = pending.front_mut() else { return Mishap::Pass };
        first.replies -= 1;
        let mishap = std::mem::replace(&mut first.mishap, Mishap::Pass);
        if first.replies == 0 {
            pending.pop_front();
        }
        mishap
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Awaited>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The fate of a request or a reply.
enum Next {
    /// It goes on; so long it is.
    Send(usize),
    /// It goes on when the gate is open; so long it is.
    Hang(usize, Gate),
    /// It is lost, and the connection with it.
    End,
}

async fn requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, kinds: &Kinds, pending: &Pending) {
    let mut read = Vec::new();
    while from.read_buf(&mut read).await.is_ok_and(|length| length > 0) {
        if !send_on(&mut read, &mut to, |bytes| first_request(bytes, kinds, pending)).await {
            return;
        }
    }
}

async fn replies(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut mode: watch::Receiver<Mode>, pending: &Pending) {
    let mut read = Vec::new();
    let mut swallowed = false;
    loop {
        let length = tokio::select! {
            _ = mode.wait_for(|mode| swallowed && !mode.swallow) => return,
            length = from.read_buf(&mut read) => length,
        };
        let (Ok(1..), Mode { swallow, delay, .. }) = (length, *mode.borrow()) else { return };
        if swallow {
            swallowed = true;
            read.clear();
            continue;
        }
        tokio::time::sleep(delay).await;
        if !send_on(&mut read, &mut to, |bytes| first_reply(bytes, pending)).await {
            return;
        }
    }
}

/// Sends on what is whole of what was read, and keeps the rest. `false` if the connection is to
/// end.
async fn send_on(read: &mut Vec<u8>, to: &mut OwnedWriteHalf, first: impl Fn(&[u8]) -> Option<Next>) -> bool {
    let mut ready = 0;
    loop {
        let next = first(read.get(ready..).unwrap_or_default());
        if let Some(Next::Send(length)) = next {
            // Bytes that came together are passed on together.
            ready += length;
            continue;
        }
        if to.write_all(read.get(..ready).unwrap_or_default()).await.is_err() {
            return false;
        }
        read.drain(..ready);
        match next {
            Some(Next::Hang(length, gate)) => {
                gate.pass().await;
                ready = length;
            }
            Some(Next::End) => return false,
            _ => return true,
        }
    }
}

/// Decides the fate of the first request in some bytes; `None` while it is incomplete.
fn first_request(bytes: &[u8], kinds: &Kinds, pending: &Pending) -> Option<Next> {
    if !pending.is_redis {
        return Some(Next::Send(bytes.len())).filter(|_| !bytes.is_empty());
    }
    let (words, length) = match frames::request(bytes) {
        Frame::Part => return None,
        Frame::Whole(words, length) => (words, length),
        Frame::Unknown => return Some(Next::Send(bytes.len())),
    };
    let kinds = kinds.read().unwrap_or_else(PoisonError::into_inner);
    let mishap = kinds.iter().find_map(|kind| kind.meet(&words)).unwrap_or(Mishap::Pass);
    let (next, of_reply) = match mishap {
        Mishap::LoseRequest => return Some(Next::End),
        Mishap::Hang(gate) => (Next::Hang(length, gate), Mishap::Pass),
        of_reply => (Next::Send(length), of_reply),
    };
    pending.push(&words, of_reply);
    Some(next)
}

/// Decides the fate of the first reply in some bytes; `None` while it is incomplete.
fn first_reply(bytes: &[u8], pending: &Pending) -> Option<Next> {
    if !pending.is_redis {
        return Some(Next::Send(bytes.len())).filter(|_| !bytes.is_empty());
    }
    let (said, length) = match frames::reply(bytes) {
        Frame::Part => return None,
        Frame::Whole(said, length) => (said, length),
        Frame::Unknown => return Some(Next::Send(bytes.len())),
    };
    Some(match said {
        ReplyKind::Reply => match pending.answered() {
            Mishap::LoseReply => Next::End,
            Mishap::HangReply(gate) => Next::Hang(length, gate),
            _ => Next::Send(length),
        },
        ReplyKind::Message => Next::Send(length),
    })
}
