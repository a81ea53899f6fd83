//! The HTTP layer over an axum handler: what it adds to a request, without a network between client
//! and server, and the rate at many connections of HTTP/1.1.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, COOKIE, HOST, SET_COOKIE};
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode};
use axum::response::Response;
use axum::routing::post;
use axum_idempotent::{IdempotentLayer, IdempotentOptions};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use idem::http::{IdempotencyLayer, header};
use idem::{Error, Idempotency, MemoryStore};
use idem_bench::result;
use ruts::store::Ttl;
use ruts::store::moka::MokaStore;
use ruts::{CookieOptions, Session, SessionLayer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tower::ServiceExt as _;
use tower_cookies::CookieManagerLayer;

use crate::at_once::at_once;
use crate::extent::Extent;
use crate::floor::Floor;
use crate::report::{Figure, Goal, Group, Kind, Unit};
use crate::stats::median;
use crate::target::Target;

/// How many connections each service has at once.
const TASKS: u64 = 64;
/// How many microseconds the layer may take of a request: in memory, and over Redis.
const IN_MEMORY: f64 = 10.0;
const IN_MEMORY_REPLAY: f64 = 8.0;
const ON_REDIS: f64 = 15.0;
/// Its least share of the rate over Redis.
const RATE: f64 = 0.95;
const KEY: &str = "idempotency-key";
/// How many requests a service gets before it is another's turn.
const IN_A_ROW: usize = 50;

/// A handler, and what is around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Served {
    Bare,
    /// The handler sends the floor's commands itself.
    Commands,
    AxumIdempotent,
    /// The handler guards itself, with the core's operation.
    MemoryByHand,
    Memory,
    RedisByHand,
    Redis,
}

impl Served {
    const ALL: [Self; 7] = [
        Self::Bare,
        Self::Commands,
        Self::AxumIdempotent,
        Self::MemoryByHand,
        Self::Memory,
        Self::RedisByHand,
        Self::Redis,
    ];

    /// The comparisons: a subject, and the one whose time is taken off.
    const PAIRS: [(Self, Self); 7] = [
        (Self::AxumIdempotent, Self::Bare),
        (Self::Memory, Self::Bare),
        (Self::MemoryByHand, Self::Bare),
        (Self::Memory, Self::MemoryByHand),
        (Self::Redis, Self::Commands),
        (Self::RedisByHand, Self::Commands),
        (Self::Redis, Self::RedisByHand),
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Bare => "the bare handler",
            Self::Commands => "a handler that sends the floor's commands",
            Self::AxumIdempotent => "axum-idempotent in memory",
            Self::MemoryByHand => "a handler with the core's operation on MemoryStore",
            Self::Memory => "the layer on MemoryStore",
            Self::RedisByHand => "a handler with the core's operation on Redis",
            Self::Redis => "the layer on Redis",
        }
    }
}

/// The connections of a service's clients, one for each task.
type Connections = Vec<Mutex<SendRequest<Body>>>;

/// The services, and how a client of theirs is known.
pub(crate) struct Services {
    routers: [Router; Served::ALL.len()],
    connections: Vec<Connections>,
    /// The header by which axum-idempotent finds its session.
    session: HeaderValue,
    run: String,
}

impl Services {
    pub(crate) async fn start(target: &Target) -> Result<Arc<Self>> {
        let handler = || Router::new().route("/charges", post(async || result()));
        let floor = Floor::connect(target.url(), target.ttl_ms()).await?;
        let commands = Router::new()
            .route("/charges", post(commands))
            .with_state(floor);
        let layer = |idempotency| {
            IdempotencyLayer::new(idempotency)
                .name("bench")
                .scope(|parts| header(parts, AUTHORIZATION))
                .required(true)
        };
        let in_memory = Idempotency::builder(MemoryStore::new())
            .ttl(target.ttl())
            .build();
        let on_redis = target.idempotency(target.store().await?);
        let options =
            IdempotentOptions::default().use_idempotency_key_header(Some("Idempotency-Key"), true);
        let beside = handler()
            .route("/login", post(login))
            .layer(IdempotentLayer::<MokaStore>::new(
                options.expire_after(60 * 5),
            ))
            .layer(
                SessionLayer::new(Arc::new(MokaStore::builder().build())).with_cookie_options(
                    CookieOptions::build()
                        .name("session")
                        .max_age(3600)
                        .path("/"),
                ),
            )
            .layer(CookieManagerLayer::new());
        // It refuses requests without a key, this one too.
        let login = Request::post("/login")
            .header(KEY, "login")
            .body(Body::empty())?;
        let login = beside.clone().oneshot(login).await?;
        let cookie = login
            .headers()
            .get(SET_COOKIE)
            .context("axum-idempotent has made no session")?
            .to_str()?;
        let session = HeaderValue::from_str(cookie.split(';').next().unwrap_or_default())?;
        let by_hand = |idempotency| {
            Router::new()
                .route("/charges", post(by_hand))
                .with_state(idempotency)
        };
        let routers = [
            handler(),
            commands,
            beside,
            by_hand(in_memory.clone()),
            handler().layer(layer(in_memory)),
            by_hand(on_redis.clone()),
            handler().layer(layer(on_redis)),
        ];
        let mut connections = Vec::new();
        for router in &routers {
            connections.push(connected(router.clone()).await?);
        }
        Ok(Arc::new(Self {
            routers,
            connections,
            session,
            run: target.run.clone(),
        }))
    }

    fn request(&self, number: u64) -> Result<Request<Body>> {
        let request = Request::post("/charges")
            .header(HOST, "bench")
            .header(AUTHORIZATION, "alice")
            .header(CONTENT_TYPE, "application/json")
            .header(COOKIE, &self.session)
            .header(KEY, format!("{}-http-{number:012}", self.run))
            .body(Body::from(result()))?;
        Ok(request)
    }

    /// One request without a network, and all of its response.
    async fn call(&self, served: Served, number: u64) -> Result<()> {
        let router = self
            .routers
            .get(served as usize)
            .context("no such service")?;
        ended(served, router.clone().oneshot(self.request(number)?).await?).await
    }

    /// One request over the connection of a task, and all of its response.
    async fn send(&self, served: Served, task: u64, number: u64) -> Result<()> {
        let connections = self
            .connections
            .get(served as usize)
            .context("no such service")?;
        let connection = connections
            .get(usize::try_from(task)?)
            .context("no such task")?;
        let mut connection = connection.lock().await;
        connection.ready().await?;
        ended(
            served,
            connection
                .send_request(self.request(number)?)
                .await?
                .map(Body::new),
        )
        .await
    }
}

async fn ended(served: Served, response: Response) -> Result<()> {
    ensure!(
        response.status() == StatusCode::OK,
        "{}: {}",
        served.name(),
        response.status()
    );
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await?;
    ensure!(body == result(), "{}: another response", served.name());
    Ok(())
}

/// Serves a router on a port of its own, until the program ends.
async fn connected(router: Router) -> Result<Connections> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, router).await });
    let mut connections = Vec::new();
    for _ in 0..TASKS {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (connection, driver) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(driver);
        connections.push(Mutex::new(connection));
    }
    Ok(connections)
}

async fn commands(State(floor): State<Floor>, headers: HeaderMap) -> Result<String, StatusCode> {
    let key = headers
        .get(KEY)
        .and_then(|key| key.to_str().ok())
        .ok_or(StatusCode::BAD_REQUEST)?;
    if let Some(found) = floor
        .claim(key)
        .await
        .map_err(|_| StatusCode::BAD_GATEWAY)?
    {
        return Ok(found);
    }
    floor
        .commit(key, &result())
        .await
        .map_err(|_| StatusCode::BAD_GATEWAY)?;
    Ok(result())
}

/// The part of the core in the layer's work: a key of two parts, a fingerprint of the body, and a
/// status with a body as the outcome.
async fn by_hand(
    State(idempotency): State<Idempotency>,
    headers: HeaderMap,
    body: String,
) -> Result<(StatusCode, String), StatusCode> {
    let text = |name| {
        headers
            .get(name)
            .and_then(|value: &HeaderValue| value.to_str().ok())
    };
    let (Some(key), Some(owner)) = (text(KEY), text(AUTHORIZATION.as_str())) else {
        return Err(StatusCode::BAD_REQUEST);
    };
    let operation = idempotency
        .operation("bench.by-hand")
        .key(&(owner, key))
        .fingerprint(&body);
    let outcome = operation
        .run(async || Ok::<_, Error>((StatusCode::OK.as_u16(), result())))
        .await;
    let (status, body) = outcome.map_err(|_| StatusCode::BAD_GATEWAY)?.into_inner();
    Ok((
        StatusCode::from_u16(status).map_err(|_| StatusCode::BAD_GATEWAY)?,
        body,
    ))
}

async fn login(session: Session<MokaStore>) -> Result<(), StatusCode> {
    let ttl = Ttl::new(3600).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    session
        .set("user", &"alice".to_owned(), ttl, None)
        .await
        .map(drop)
        .map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
}

/// The microseconds of one request and the requests a second of each round, by service and kind.
#[derive(Default)]
pub(crate) struct Layers {
    times: [[Vec<f64>; 2]; Served::ALL.len()],
    rates: [[Vec<f64>; 2]; Served::ALL.len()],
}

impl Layers {
    /// One round. Numbers of keys from `from` on are used.
    pub(crate) async fn round(
        &mut self,
        services: &Arc<Services>,
        extent: &Extent,
        from: u64,
    ) -> Result<()> {
        let Extent {
            calls,
            slice: length,
            turns,
            ..
        } = *extent;
        let times = tokio::spawn(sequential(services.clone(), calls, from)).await??;
        let replayed = from + calls;
        let mut next = replayed + TASKS;
        for number in replayed..next {
            for served in Served::ALL {
                services.call(served, number).await?;
            }
        }
        let mut order = Served::ALL;
        for kind in Kind::ALL {
            let mut rates = [0.0; Served::ALL.len()];
            for _ in 0..turns {
                for served in order {
                    let first = if kind == Kind::Replay { replayed } else { next };
                    let (number, rate) = many(services, served, kind, length, first).await?;
                    next += if kind == Kind::Replay { 0 } else { number };
                    rates[served as usize] += rate / f64::from(turns);
                }
                order.reverse();
            }
            for served in Served::ALL.map(|served| served as usize) {
                self.rates[served][kind as usize].push(rates[served]);
                self.times[served][kind as usize].push(median(&times[served][kind as usize]));
            }
        }
        Ok(())
    }

    /// The tables' part.
    pub(crate) fn group(&self) -> Group {
        let mut figures = Vec::new();
        for kind in Kind::ALL {
            for (served, beside) in Served::PAIRS {
                let goals = Goals::of(served, beside, kind);
                let name = served.name();
                let of = |served: Served| &*self.times[served as usize][kind as usize];
                let times = of(served).iter().zip(of(beside));
                let shares = times.map(|(own, other)| own - other).collect();
                let beside_name = beside.name();
                let what = format!("{kind}: {name}, its share of a request over {beside_name}");
                figures.push(
                    Figure::new(what, Unit::Microseconds, shares)
                        .series("", Unit::Microseconds, of(served))
                        .series(beside_name, Unit::Microseconds, of(beside))
                        .with(goals.share),
                );
                let of = |served: Served| &*self.rates[served as usize][kind as usize];
                let what = format!(
                    "{kind}, {TASKS} connections: {name}, share of the rate of {beside_name}"
                );
                let other = (beside_name, of(beside));
                figures
                    .push(Figure::ratio(what, Unit::PerSecond, of(served), other).with(goals.rate));
            }
        }
        Group {
            title: "The HTTP layer over an axum handler".to_owned(),
            figures,
        }
    }
}

/// The goals of a comparison.
#[derive(Default)]
struct Goals {
    share: Option<Goal>,
    rate: Option<Goal>,
}

impl Goals {
    fn of(served: Served, beside: Served, kind: Kind) -> Self {
        let in_memory = match kind {
            Kind::First => IN_MEMORY,
            Kind::Replay => IN_MEMORY_REPLAY,
        };
        match (served, beside) {
            (Served::Memory, Served::Bare) => Self {
                share: Some(Goal::AtMost(in_memory)),
                rate: None,
            },
            (Served::Redis, Served::Commands) => Self {
                share: Some(Goal::AtMost(ON_REDIS)),
                rate: Some(Goal::AtLeast(RATE)),
            },
            _ => Self::default(),
        }
    }
}

type Times = [[Vec<f64>; 2]; Served::ALL.len()];

/// The services in turns, in an order that goes round. Each gets a few requests in a row, as a busy
/// service does: its code stays in the caches of the processor. Then they are replayed.
async fn sequential(services: Arc<Services>, calls: u64, from: u64) -> Result<Times> {
    let mut times = Times::default();
    let mut order = Served::ALL;
    let numbers: Vec<u64> = (from..from + calls).collect();
    for numbers in numbers.chunks(IN_A_ROW) {
        for served in order {
            for kind in Kind::ALL {
                for &number in numbers {
                    let begun = Instant::now();
                    services.call(served, number).await?;
                    times[served as usize][kind as usize].push(begun.elapsed().as_secs_f64() * 1e6);
                }
            }
        }
        order.rotate_left(1);
    }
    Ok(times)
}

/// Many connections at once: how many numbers of keys may have been used, and the requests a
/// second.
async fn many(
    services: &Arc<Services>,
    served: Served,
    kind: Kind,
    length: Duration,
    from: u64,
) -> Result<(u64, f64)> {
    let services = services.clone();
    let call = move |task, calls| {
        let services = services.clone();
        async move {
            let number = if kind == Kind::Replay {
                task
            } else {
                calls * TASKS + task
            };
            services.send(served, task, from + number).await
        }
    };
    at_once(TASKS, length, call).await
}
