//! Sentinels that do not agree, or whose news is lost: two servers that both act as master, and
//! Sentinels with scripted answers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use idem_core::Store as _;
use idem_core::record::Claimed;
use idem_redis::RedisStore;
use idem_testkit::{Mishap, Proxy, RedisServer, Reply};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;
use tokio::time::sleep;

use crate::{BUSY, SECOND, claim, connected, redis_key, until, usual};

/// The scripted answers of a Sentinel.
#[derive(Clone)]
struct Sentinel {
    port: u16,
    /// The port of the master.
    names: Arc<Mutex<u16>>,
    takes: Duration,
    news: broadcast::Sender<String>,
    /// How often it was asked for the master.
    asked: Arc<AtomicU64>,
}

impl Sentinel {
    /// Takes so long for each answer.
    async fn start(master: &RedisServer, takes: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let names = Arc::new(Mutex::new(master.port()));
        let sentinel = Self {
            port,
            names,
            takes,
            news: broadcast::channel(8).0,
            asked: Arc::default(),
        };
        let serving = sentinel.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().serve(stream));
            }
        });
        sentinel
    }

    fn names(&self, master: u16) {
        *self.names.lock().unwrap() = master;
    }

    /// Tells those who listen.
    fn tells(&self, old: u16, new: u16) {
        self.names(new);
        let _ = self
            .news
            .send(format!("main 127.0.0.1 {old} 127.0.0.1 {new}"));
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    fn is_listened_to(&self) -> bool {
        self.news.receiver_count() > 0
    }

    async fn serve(self, mut stream: TcpStream) {
        let mut read = Vec::new();
        let mut news = None;
        loop {
            while let Some((words, length)) = command(&read) {
                read.drain(..length);
                let reply = match words[0].to_ascii_uppercase().as_str() {
                    "HELLO" => "%1\r\n$5\r\nproto\r\n:3\r\n".to_owned(),
                    "SENTINEL" => {
                        self.asked.fetch_add(1, Ordering::SeqCst);
                        sleep(self.takes).await;
                        let port = self.names.lock().unwrap().to_string();
                        format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len())
                    }
                    "SUBSCRIBE" => {
                        news = Some(self.news.subscribe());
                        ">3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n".to_owned()
                    }
                    _ => "+OK\r\n".to_owned(),
                };
                if stream.write_all(reply.as_bytes()).await.is_err() {
                    return;
                }
            }
            let heard = async {
                match &mut news {
                    Some(news) => news.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                read = stream.read_buf(&mut read) => if !matches!(read, Ok(1..)) { return },
                Ok(text) = heard => {
                    let push = format!(">3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n${}\r\n{text}\r\n", text.len());
                    if stream.write_all(push.as_bytes()).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

/// The first command that was read, and its length.
fn command(read: &[u8]) -> Option<(Vec<String>, usize)> {
    let mut at = 0;
    let mut line = |length: Option<usize>| {
        let rest = read.get(at..)?;
        let length = length.or_else(|| rest.windows(2).position(|end| end == b"\r\n"))?;
        let line = String::from_utf8_lossy(rest.get(..length)?).into_owned();
        rest.get(..length + 2)?;
        at += length + 2;
        Some((line, at))
    };
    let count = line(None)?.0.strip_prefix('*')?.parse().ok()?;
    let mut words = Vec::new();
    let mut end = 0;
    for _ in 0..count {
        let length = line(None)?.0.strip_prefix('$')?.parse().ok()?;
        let (word, at) = line(Some(length))?;
        words.push(word);
        end = at;
    }
    Some((words, end))
}

fn url(sentinels: &[Sentinel]) -> String {
    let hosts: Vec<_> = sentinels
        .iter()
        .map(|sentinel| format!("127.0.0.1:{}", sentinel.port))
        .collect();
    format!("redis+sentinel://{}/main", hosts.join(","))
}

/// Three that name one master. The last two take a little longer than the first, which is listened
/// to.
async fn three(master: &RedisServer) -> [Sentinel; 3] {
    let later = Duration::from_millis(20);
    [
        Sentinel::start(master, Duration::ZERO).await,
        Sentinel::start(master, later).await,
        Sentinel::start(master, later).await,
    ]
}

/// Three, of which the first is the last to answer.
async fn last_to_answer(master: &RedisServer) -> [Sentinel; 3] {
    let mut sentinels = three(master).await;
    sentinels[0] = Sentinel::start(master, Duration::from_millis(50)).await;
    sentinels
}

async fn two_masters() -> (RedisServer, RedisServer) {
    (
        RedisServer::start().await.unwrap(),
        RedisServer::start().await.unwrap(),
    )
}

async fn has(server: &RedisServer, key: &str) -> bool {
    server.cli(&["EXISTS", &redis_key(key)]).await.unwrap() == Reply::Number(1)
}

/// Claims ever new keys until one is at a server. Gives how long that took.
async fn goes_to(store: &RedisStore, server: &RedisServer, prefix: &str) -> Duration {
    let start = Instant::now();
    let mut number = 0;
    loop {
        number += 1;
        let key = format!("{prefix}{number}");
        if store.claim(&claim(&key)).await.is_ok() && has(server, &key).await {
            return start.elapsed();
        }
        assert!(start.elapsed() < 30 * SECOND, "it never goes there");
        sleep(Duration::from_millis(5)).await;
    }
}

/// The answer to a claim, which a busy machine may give only to a second try.
async fn claims(store: &RedisStore, key: &str) -> Claimed {
    for _ in 0..30 {
        match store.claim(&claim(key)).await {
            Ok(claimed) => return claimed,
            Err(error) => assert!(error.to_string().contains(" within "), "{error}"),
        }
    }
    panic!("no answer in time, again and again")
}

/// The ids of all connections to a server but the question's own.
async fn connections(server: &RedisServer) -> Vec<String> {
    let clients = server.cli(&["CLIENT", "LIST"]).await.unwrap().to_string();
    let others = clients
        .lines()
        .filter(|client| !client.contains("cmd=client|list"));
    others
        .filter_map(|client| client.split(' ').next().map(str::to_owned))
        .collect()
}

async fn cut(server: &RedisServer) {
    server
        .cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])
        .await
        .unwrap();
}

/// The news of a failover counts for ten seconds. A busy machine that takes longer starts over.
const YOUNG: Duration = Duration::from_secs(9);

#[tokio::test]
async fn the_news_of_a_fail_over_outweighs_sentinels_that_have_not_heard_it() {
    until("it is seen in time", || Box::pin(news_outweighs())).await;
}

/// Returns whether it was seen in time.
async fn news_outweighs() -> bool {
    let (old, new) = two_masters().await;
    let sentinels = last_to_answer(&old).await;
    let store = usual(url(&sentinels)).await;
    until("it listens", || async { sentinels[0].is_listened_to() }).await;
    // The leader knows; most do not yet. The old master lives, and is cut off from them all.
    let told = Instant::now();
    sentinels[0].tells(old.port(), new.port());
    assert!(goes_to(&store, &new, "a").await < SECOND + BUSY);
    cut(&new).await;
    for number in 0..20 {
        let key = format!("b{number}");
        until("it is connected", || async {
            store.claim(&claim(&key)).await.is_ok()
        })
        .await;
        let is_there = has(&new, &key).await;
        if told.elapsed() > YOUNG {
            return false;
        }
        assert!(is_there, "{key} is at the old master");
    }
    for sentinel in &sentinels {
        sentinel.names(new.port());
    }
    let other = usual(url(&sentinels)).await;
    cut(&new).await;
    for store in [&store, &other] {
        until("it is connected", || async {
            store.claim(&claim("c")).await.is_ok()
        })
        .await;
    }
    let duplicate = claims(&other, "c").await;
    assert!(
        matches!(duplicate, Claimed::InFlight { attempt: 1, .. }),
        "{duplicate:?}"
    );
    true
}

#[tokio::test]
async fn sentinels_that_have_not_heard_of_a_fail_over_do_not_end_the_connection_to_the_new_master()
{
    until("it is seen in time", || Box::pin(connection_stays())).await;
}

/// Returns whether it was seen in time.
async fn connection_stays() -> bool {
    let (old, new) = two_masters().await;
    let sentinels = three(&old).await;
    let store = usual(url(&sentinels)).await;
    until("it listens", || async { sentinels[0].is_listened_to() }).await;
    let told = Instant::now();
    sentinels[0].tells(old.port(), new.port());
    goes_to(&store, &new, "a").await;
    let before = connections(&new).await;
    let asked = sentinels.each_ref().map(Sentinel::asked);
    // One of the others is heard to name the old master, so all are asked, and most name it.
    until("all are asked", || async {
        sentinels
            .iter()
            .zip(asked)
            .skip(1)
            .all(|(sentinel, asked)| sentinel.asked() > asked)
    })
    .await;
    for number in 0..20 {
        claims(&store, &format!("b{number}")).await;
        let now = connections(&new).await;
        if told.elapsed() > YOUNG {
            return false;
        }
        assert_eq!(now, before);
        sleep(Duration::from_millis(10)).await;
    }
    true
}

#[tokio::test]
async fn one_sentinel_that_was_cut_off_is_outvoted() {
    let (old, new) = two_masters().await;
    let sentinels = last_to_answer(&old).await;
    sentinels[1].names(new.port());
    sentinels[2].names(new.port());
    for number in 0..5 {
        let store = usual(url(&sentinels)).await;
        let key = number.to_string();
        claims(&store, &key).await;
        assert!(has(&new, &key).await, "{key} is at the old master");
    }
    // If it is the only one that answers, its answer counts.
    let store = usual(url(&sentinels[..1])).await;
    claims(&store, "x").await;
    assert!(has(&old, "x").await);
}

#[tokio::test]
async fn a_fail_over_whose_news_is_lost_is_noticed_within_seconds() {
    let (old, new) = two_masters().await;
    let sentinels = three(&old).await;
    let store = usual(url(&sentinels)).await;
    until("it listens", || async { sentinels[0].is_listened_to() }).await;
    // The one that is listened to knows nothing either.
    sentinels[1].names(new.port());
    sentinels[2].names(new.port());
    let took = goes_to(&store, &new, "a").await;
    assert!(took < 4 * SECOND + BUSY, "{took:?}");
    // And now it alone says otherwise, again and again, which changes nothing.
    let start = Instant::now();
    let mut number = 0;
    while start.elapsed() < 4 * SECOND {
        number += 1;
        let key = format!("b{number}");
        claims(&store, &key).await;
        assert!(has(&new, &key).await, "{key} is at the old master");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn sentinels_that_agree_cost_neither_a_connection_nor_further_questions() {
    let master = RedisServer::start().await.unwrap();
    let sentinels = three(&master).await;
    let store = usual(url(&sentinels)).await;
    let before = connections(&master).await;
    // All of them once by the first connection. Then the first one regularly, and each time one of
    // the others.
    until("they have said it again", || async {
        sentinels[2].asked() > 1
    })
    .await;
    claims(&store, "1").await;
    assert_eq!(connections(&master).await, before);
    let [first, second, third] = sentinels.each_ref().map(Sentinel::asked);
    assert!(second + third <= first + 2, "{first} {second} {third}");
}

#[tokio::test]
async fn news_ends_an_attempt_that_hangs_at_the_old_master() {
    let (old, new) = two_masters().await;
    let sentinels = three(&old).await;
    let way = Proxy::start(&old.url()).await.unwrap();
    for sentinel in &sentinels {
        sentinel.names(way.address().port());
    }
    let builder = RedisStore::builder().url(url(&sentinels));
    let store = connected(builder.connect_time_limit(60 * SECOND)).await;
    until("it listens", || async { sentinels[0].is_listened_to() }).await;
    // The next attempt finds an open port, and no answer.
    let attempts = way.passing(|words| words[0] == b"HELLO");
    way.passing(|words| words[0] == b"SET")
        .next(Mishap::LoseRequest);
    old.pause().unwrap();
    assert!(store.claim(&claim("1")).await.is_err());
    attempts.reached(1).await;
    sentinels[1].names(new.port());
    sentinels[2].names(new.port());
    sentinels[0].tells(old.port(), new.port());
    let took = goes_to(&store, &new, "a").await;
    assert!(took < 2 * SECOND + BUSY, "{took:?}");
    old.resume().unwrap();
}

/// Sentinels that told of a failover, and of a second one only to those who ask, when the first new
/// master has gone in this way.
async fn a_second_fail_over(goes: impl AsyncFnOnce(&RedisServer)) -> Duration {
    let (old, new) = two_masters().await;
    let third = RedisServer::start().await.unwrap();
    let way = Proxy::start(&new.url()).await.unwrap();
    let sentinels = three(&old).await;
    let builder = RedisStore::builder().url(url(&sentinels));
    let store = connected(builder.connect_time_limit(60 * SECOND)).await;
    until("it listens", || async { sentinels[0].is_listened_to() }).await;
    for sentinel in &sentinels[1..] {
        sentinel.names(way.address().port());
    }
    sentinels[0].tells(old.port(), way.address().port());
    goes_to(&store, &new, "a").await;
    for sentinel in &sentinels[1..] {
        sentinel.names(third.port());
    }
    goes(&new).await;
    way.passing(|words| words[0] == b"SET")
        .next(Mishap::LoseRequest);
    goes_to(&store, &third, "b").await
}

#[tokio::test]
async fn news_counts_no_longer_when_its_server_is_gone() {
    let took = a_second_fail_over(async |new| new.kill().unwrap()).await;
    assert!(took < 4 * SECOND + BUSY, "{took:?}");
}

#[tokio::test]
async fn news_counts_no_longer_when_its_server_answers_nothing() {
    let took = a_second_fail_over(async |new| new.pause().unwrap()).await;
    assert!(took < 4 * SECOND + BUSY, "{took:?}");
}

#[tokio::test]
async fn news_counts_no_longer_when_its_server_says_that_it_is_no_master() {
    let took = a_second_fail_over(async |new| {
        new.cli(&["REPLICAOF", "127.0.0.1", "1"]).await.unwrap();
    })
    .await;
    assert!(took < 4 * SECOND + BUSY, "{took:?}");
}

#[tokio::test]
async fn p10_a_claim_that_was_sent_is_not_called_refused_because_the_next_master_refuses_us() {
    let (old, new) = two_masters().await;
    let way = Proxy::start(&old.url()).await.unwrap();
    let claims = way.passing(|words| words[0] == b"SET");
    let sentinels = three(&old).await;
    for sentinel in &sentinels {
        sentinel.names(way.address().port());
    }
    let store = usual(url(&sentinels)).await;
    until("it listens", || async { sentinels[0].is_listened_to() }).await;
    new.cli(&["CONFIG", "SET", "requirepass", "secret"])
        .await
        .unwrap();
    old.pause().unwrap();
    let sent = claim("sent");
    let (answer, ()) = tokio::join!(store.claim(&sent), async {
        claims.reached(1).await;
        sentinels[1].names(new.port());
        sentinels[2].names(new.port());
        sentinels[0].tells(old.port(), new.port());
    });
    let error = answer.unwrap_err();
    assert!(
        error.is_unknown(),
        "it is carried out when the old master goes on: {error}"
    );
    old.resume().unwrap();
    until("it was carried out", || async { has(&old, "sent").await }).await;
    // A command that was never sent is known not to be carried out.
    until("it is refused", || async {
        store.claim(&claim("next")).await.is_err_and(|error| {
            assert!(error.is_retryable(), "{error}");
            !error.is_unknown() && error.to_string().contains("password")
        })
    })
    .await;
}

#[tokio::test]
async fn a_majority_that_lies_about_a_master_gets_nobody_to_use_a_replica() {
    let (old, other) = two_masters().await;
    let sentinels = last_to_answer(&old).await;
    other
        .cli(&["REPLICAOF", "127.0.0.1", &old.port().to_string()])
        .await
        .unwrap();
    sentinels[1].names(other.port());
    sentinels[2].names(other.port());
    let error = RedisStore::connect(url(&sentinels)).await.unwrap_err();
    assert!(
        error.is_retryable() && error.to_string().contains("not a master"),
        "{error}"
    );
    sentinels[1].names(old.port());
    let store = usual(url(&sentinels)).await;
    sentinels[1].names(other.port());
    cut(&old).await;
    for number in 0..5 {
        if let Err(error) = store.claim(&claim(&format!("k{number}"))).await {
            assert!(error.is_retryable(), "{error}");
        }
    }
    sentinels[1].names(old.port());
    goes_to(&store, &old, "a").await;
}
