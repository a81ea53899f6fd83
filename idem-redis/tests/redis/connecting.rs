//! Making a store: what is refused, what is warned of, and that no secret is shown.

use std::error::Error;
use std::fmt::Write as _;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use idem_core::record::{Claimed, Issued, Ownership};
use idem_core::{Store as _, StoreError, StoreErrorKind};
use idem_redis::RedisStore;
use idem_testkit::HeldPort;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::NoSubscriber;
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

use crate::server::{Server, connection_manager};
use crate::still::{pass, until, within};
use crate::{
    SECOND, claim, claim_issued, commit, give_up, id, issue, patient, patient_builder, release,
    renewal,
};

/// An error with all its causes, as it would stand in a log.
fn shown(error: &StoreError) -> String {
    let mut text = String::new();
    let mut next = Some(error as &dyn Error);
    while let Some(error) = next {
        let _ = write!(text, "{error} {error:?} ");
        next = error.source();
    }
    text
}

/// Keeps the WARN events of the target `idem`.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<String>>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN && metadata.target() == "idem"
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        struct Fields<'a>(&'a mut String);
        impl Visit for Fields<'_> {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                let _ = write!(self.0, "{field}={value:?} ");
            }
        }
        event.record(&mut Fields(&mut self.0.lock().unwrap()));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// While there is one subscriber, the first thread at an event decides for all whether it is
/// wanted, and most threads have none.
static SECOND_SUBSCRIBER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::new()));

/// What is warned of meanwhile, on this thread.
pub(crate) async fn warnings(meanwhile: impl Future) -> String {
    LazyLock::force(&SECOND_SUBSCRIBER);
    let warnings = Warnings::default();
    let guard = tracing::subscriber::set_default(warnings.clone());
    meanwhile.await;
    drop(guard);
    warnings.0.lock().unwrap().clone()
}

#[tokio::test]
async fn a_wrong_password_is_refused_and_not_shown() {
    let server = Server::start(&["--requirepass", "open-sesame"]).await;
    let url = |user: &str| format!("redis://{user}127.0.0.1:{}/", server.port());
    for user in ["", ":hunter2@", "nobody:hunter2@"] {
        let error = patient_builder(url(user)).connect().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
        let text = shown(&error);
        assert!(
            text.contains(&format!("redis://127.0.0.1:{}", server.port()))
                && text.contains("password"),
            "{text}"
        );
        assert!(!text.contains("hunter2"), "{text}");
    }
    let store = patient(url(":open-sesame@")).await;
    store.claim(&claim("1")).await.unwrap();
    assert!(!format!("{store:?}").contains("sesame"));
    assert!(!format!("{:?}", RedisStore::builder().url(url(":open-sesame@"))).contains("sesame"));
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named() {
    let nobodys = HeldPort::hold().unwrap();
    let gone = format!("redis://:hunter2@127.0.0.1:{}/", nobodys.port());
    for url in [gone.as_str(), "redis://:hunter2@idem.invalid:6390/"] {
        let error = RedisStore::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
        let text = shown(&error);
        assert!(
            text.contains(url.split_once('@').unwrap().1.trim_end_matches('/')),
            "{text}"
        );
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[tokio::test]
async fn an_address_that_swallows_everything_does_not_hold_up_the_start() {
    // Accepts, and never says a word. (Addresses that do not even accept are not to be had on every
    // network.)
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", silent.local_addr().unwrap());
    let usual = RedisStore::builder().url(url.as_str());
    let brief = SECOND / 10;
    let quick = usual.clone().connect_time_limit(brief);
    for (builder, limit) in [(usual, 2 * SECOND), (quick, brief)] {
        let attempt = async {
            tokio::join!(builder.connect(), async {
                let connection = silent.accept().await.unwrap();
                pass(limit).await;
                connection
            })
        };
        let (connected, _) = within(limit, attempt).await;
        let error = connected.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        assert!(error.to_string().contains(&url), "{error}");
    }
}

#[tokio::test]
async fn a_replica_is_refused() {
    let master = Server::start(&[]).await;
    let replica = Server::start(&["--replicaof", &format!("127.0.0.1 {}", master.port())]).await;
    let error = patient_builder(replica.url()).connect().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused);
    assert!(error.to_string().contains("replica"), "{error}");
}

#[tokio::test]
async fn a_server_that_evicts_is_warned_of_with_the_command_that_fixes_it() {
    let careful = Server::start(&["--maxmemory-policy", "noeviction"]).await;
    assert_eq!(warnings(patient(careful.url())).await, "");
    let forgetful = Server::start(&[
        "--maxmemory-policy",
        "allkeys-lru",
        "--requirepass",
        "hunter2",
    ])
    .await;
    let url = forgetful.url().replace("redis://", "redis://:hunter2@");
    let text = warnings(patient(url)).await;
    assert!(
        text.contains("allkeys-lru") && text.contains("CONFIG SET maxmemory-policy noeviction"),
        "{text}"
    );
    assert!(!text.contains("hunter2"), "{text}");
}

#[tokio::test]
async fn settings_that_cannot_be_are_refused() {
    let url = "redis://127.0.0.1:1/";
    for (builder, word) in [
        (RedisStore::builder(), "neither"),
        (RedisStore::builder().url(url).prefix("a b"), "prefix"),
        (RedisStore::builder().url(url).prefix(""), "prefix"),
        (
            RedisStore::builder().url(url).time_limit(Duration::ZERO),
            "time limit",
        ),
        (RedisStore::builder().url(url).wake_url(url), "wake_url"),
        (
            RedisStore::builder().url(url).replicas(0, SECOND / 10),
            "at least one",
        ),
        (
            RedisStore::builder().url(url).replicas(1, Duration::ZERO),
            "at least one",
        ),
        (
            RedisStore::builder().url(url).replicas(1, SECOND),
            "time_limit",
        ),
        (
            RedisStore::builder()
                .url(url)
                .time_limit(9 * SECOND)
                .replicas(1, 3 * SECOND),
            "taken for lost",
        ),
        (
            RedisStore::builder().replicas(1, SECOND / 10),
            "needs a `url`",
        ),
        (
            RedisStore::builder()
                .url(url)
                .cluster_nodes(["127.0.0.1:1"]),
            "one of them",
        ),
        (
            RedisStore::builder().url(url).password("p"),
            "into the `url`",
        ),
        (
            RedisStore::builder().sentinels("main", [""; 0]),
            "empty list",
        ),
        (
            RedisStore::builder()
                .sentinels("main", ["127.0.0.1:1"])
                .wake_url(url),
            "wake_url",
        ),
    ] {
        let error = builder.connect().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
}

/// The rights that the crate's documentation lists, and nothing more.
const RIGHTS: &str = "~idem:* &idem:* +set +get +del +append +pttl +pexpire +evalsha +script|load \
    +subscribe +unsubscribe +publish +ping +info +time";

async fn server_with_user(rights: &str) -> (Server, String) {
    let server = Server::start(&[]).await;
    let words = ["ACL", "SETUSER", "app", "reset", "on", ">hunter2"]
        .into_iter()
        .chain(rights.split(' '));
    let () = server.send(&words.collect::<Vec<_>>()).await;
    let url = format!("redis://app:hunter2@127.0.0.1:{}", server.port());
    (server, url)
}

/// The time within which a waiter returns: one that polls does so five times a second.
const WOKEN_WITHIN: Duration = Duration::from_millis(500);

/// One of each call, and a wait that is woken.
async fn use_everything(server: &Server, store: &RedisStore) {
    let first = claim("1");
    let second = claim("2");
    store.claim(&first).await.unwrap();
    store.claim(&second).await.unwrap();
    assert!(matches!(
        store.claim(&claim("1")).await.unwrap(),
        Claimed::InFlight { .. }
    ));
    assert_eq!(
        *store.renew(&[renewal(&first)]).await[0].as_ref().unwrap(),
        Ownership::Held
    );
    let before = server.scripts().await;
    let waiter = tokio::spawn({
        let store = store.clone();
        let id = first.id.clone();
        async move { store.wait(&id, 1, 20 * SECOND).await.unwrap() }
    });
    // The clock stands still, so that the subscription of a busy machine is not given up.
    let looked = until("the waiter's look", || async {
        server.scripts().await > before
    });
    within(Duration::ZERO, looked).await;
    let mut kept = commit(&first, 1, "1");
    kept.remember = 600 * SECOND;
    let woken = async {
        assert_eq!(store.commit(&kept).await.unwrap(), Ownership::Held);
        server.steps(waiter).await.unwrap();
    };
    within(WOKEN_WITHIN, woken).await;
    assert!(matches!(
        store.claim(&claim("1")).await.unwrap(),
        Claimed::Committed { .. }
    ));
    assert_eq!(
        store.release(&release(&second)).await.unwrap(),
        Ownership::Held
    );
    assert!(store.inspect(&id("1")).await.unwrap().is_some());
    store.remove(&id("1")).await.unwrap();
    assert_eq!(
        *store.issue(&[issue("3")]).await[0].as_ref().unwrap(),
        Issued::Issued
    );
    let third = claim_issued("3");
    assert!(matches!(
        store.claim(&third).await.unwrap(),
        Claimed::Owned { attempt: 1, .. }
    ));
    assert_eq!(
        store.release(&give_up(&third)).await.unwrap(),
        Ownership::Held
    );
    store.remove(&id("3")).await.unwrap();
}

#[tokio::test]
async fn the_rights_that_are_documented_are_enough() {
    let (server, url) = server_with_user(RIGHTS).await;
    let all = warnings(async { use_everything(&server, &patient(url).await).await }).await;
    assert_eq!(all, "");
}

#[tokio::test]
async fn without_the_right_to_channels_waiters_poll_and_it_is_warned_of() {
    let (server, url) = server_with_user(&RIGHTS.replace("&idem:* ", "")).await;
    let store = patient(url).await;
    let text = warnings(use_everything(&server, &store)).await;
    assert!(text.contains("&idem:*"), "{text}");
}

#[tokio::test]
async fn without_the_right_to_ask_the_server_is_used_and_it_is_warned_of() {
    let (server, url) = server_with_user(&RIGHTS.replace(" +info", "")).await;
    let text = warnings(async { use_everything(&server, &patient(url).await).await }).await;
    assert!(text.contains("INFO"), "{text}");
}

#[tokio::test]
async fn without_the_right_to_ask_for_the_time_the_server_is_used_and_it_is_warned_of() {
    let (server, url) = server_with_user(&RIGHTS.replace(" +time", "")).await;
    let text = warnings(async { use_everything(&server, &patient(url).await).await }).await;
    assert!(text.contains("+time"), "{text}");
}

#[tokio::test]
async fn a_missing_right_is_refused_and_named() {
    let (_server, url) = server_with_user(&RIGHTS.replace("~idem:*", "~other:*")).await;
    let error = patient_builder(url).connect().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused);
    assert!(
        error.to_string().contains("NOPERM") && error.to_string().contains("~idem:*"),
        "{error}"
    );
}

#[tokio::test]
async fn each_right_without_which_a_commit_or_renewal_fails_is_asked_for_before_a_body_runs() {
    for right in [
        "set",
        "get",
        "del",
        "append",
        "pttl",
        "pexpire",
        "evalsha",
        "script|load",
    ] {
        let (server, url) = server_with_user(&RIGHTS.replace(&format!(" +{right}"), "")).await;
        let error = patient_builder(url.clone()).connect().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Refused, "{right}: {error}");
        assert!(
            error.to_string().contains(&format!("+{right}")),
            "{right}: {error}"
        );
        // On a connection of the application, too.
        let given = RedisStore::builder().connection(connection_manager(url).await);
        let error = given.time_limit(20 * SECOND).connect().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Refused, "{right}: {error}");
        drop(server);
    }
}

#[tokio::test]
async fn commands_that_are_disabled_or_renamed_are_refused() {
    for command in ["EVALSHA", "SCRIPT", "GET", "PEXPIRE", "DEL"] {
        // One that is disabled is unknown as well.
        let server = Server::start(&["--rename-command", command, "secret"]).await;
        let error = patient_builder(server.url()).connect().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Refused, "{command}: {error}");
        assert!(
            error.to_string().contains(command) && error.to_string().contains("rename"),
            "{command}: {error}"
        );
    }
}

#[tokio::test]
async fn a_right_that_is_taken_away_stops_claims_at_the_next_connection_until_it_is_given_back() {
    let (server, url) = server_with_user(RIGHTS).await;
    let store = patient(url).await;
    store.claim(&claim("1")).await.unwrap();
    let () = server.send(&["ACL", "SETUSER", "app", "-evalsha"]).await;
    let _: redis::Value = server.send(&["CLIENT", "KILL", "USER", "app"]).await;
    let refused = async || match store.claim(&claim("2")).await {
        Err(error) => {
            !error.is_unknown() && error.is_retryable() && error.to_string().contains("+evalsha")
        }
        Ok(_) => panic!("a body would run, and its commit be refused"),
    };
    until("the refusal", || async { refused().await }).await;
    assert_eq!(server.get("idem:orders:2").await, None);
    let () = server.send(&["ACL", "SETUSER", "app", "+evalsha"]).await;
    until("a claim", || async {
        store.claim(&claim("3")).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn a_proxy_that_speaks_an_older_protocol_is_refused_with_what_is_needed() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut read = [0; 4096];
                while matches!(stream.read(&mut read).await, Ok(1..)) {
                    // The client sends three commands at once.
                    let _ = stream
                        .write_all(&b"-ERR unknown command 'HELLO'\r\n".repeat(3))
                        .await;
                }
            });
        }
    });
    let error = patient_builder(url).connect().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("RESP3"), "{error}");
}

#[tokio::test]
async fn databases_are_kept_apart() {
    let server = Server::start(&[]).await;
    let zero = patient(server.url()).await;
    let three = patient(format!("{}3", server.url())).await;
    zero.claim(&claim("1")).await.unwrap();
    assert!(matches!(
        three.claim(&claim("1")).await.unwrap(),
        Claimed::Owned { .. }
    ));
    let error = patient_builder(format!("{}99", server.url())).connect();
    let error = error.await.unwrap_err();
    assert!(
        error.to_string().contains("database") || error.to_string().contains("DB"),
        "{error}"
    );
}

#[cfg(unix)]
#[tokio::test]
async fn unix_sockets_are_taken() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let path = socket.to_str().unwrap();
    let server = Server::start(&["--unixsocket", path]).await;
    until("the socket", || async { socket.exists() }).await;
    let store = patient(format!("unix://{path}?db=2")).await;
    use_everything(&server, &store).await;
}

#[tokio::test]
async fn a_connection_of_the_application_is_used_as_it_is() {
    let server = Server::start(&[]).await;
    for store in [
        RedisStore::from_connection(server.client().await),
        RedisStore::from_connection(connection_manager(server.url()).await),
        RedisStore::builder()
            .connection(connection_manager(server.url()).await)
            .prefix("other")
            .time_limit(20 * SECOND)
            .connect()
            .await
            .unwrap(),
    ] {
        store.check().await.unwrap();
        use_everything(&server, &store).await;
        store.remove(&id("2")).await.unwrap();
    }
}
