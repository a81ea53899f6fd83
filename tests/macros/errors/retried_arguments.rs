//! P6: what a retried body gets, and asks.
#![allow(
    clippy::non_minimal_cfg,
    clippy::needless_arbitrary_self_type,
    clippy::needless_lifetimes,
    clippy::drop_non_drop,
    reason = "tests"
)]

use super::*;

struct Service {
    runs: AtomicU32,
}

impl Service {
    fn fails_twice(&self) -> Result<u32, OrderError> {
        let run = self.runs.fetch_add(1, Ordering::SeqCst);
        if run < 2 {
            Err(OrderError::Gateway)
        } else {
            Ok(run + 1)
        }
    }

    #[idempotent(key = id, name = "args.borrowed", errors(_ => retry(max = 5, backoff = "1ms")))]
    async fn borrowed(&self, id: u64) -> Result<u32, OrderError> {
        self.fails_twice()
    }

    #[idempotent(
        key = id,
        name = "args.shared",
        errors(_ => retry(max = 5, backoff = "1ms")),
        detached,
    )]
    async fn shared(self: Arc<Self>, id: u64) -> Result<u32, OrderError> {
        fn runs_of(service: &Service) -> u32 {
            struct Of<'a>(&'a Service);
            impl Of<'_> {
                fn runs(&self) -> u32 {
                    self.0.runs.load(Ordering::SeqCst)
                }
            }
            Of(service).runs()
        }
        let before = runs_of(&self);
        let answer = { self }.fails_twice();
        answer.inspect(|run| assert_eq!(*run, before + 1))
    }
}

#[derive(Clone)]
struct Json<T>(T);

#[derive(Clone)]
struct Req {
    id: u64,
    names: Vec<String>,
}

struct NotClone(u64);

#[idempotent(
    key = (req.id, only_in_key.0),
    name = "args.destructured",
    errors(_ => retry(max = 5, backoff = Duration::from_millis(req.id))),
)]
async fn destructured(
    service: &Service,
    Json(mut req): Json<Req>,
    inline: String,
    mut left: Vec<u8>,
    _unused: NotClone,
    only_in_key: NotClone,
) -> Result<String, OrderError> {
    // The next try does not see this change.
    req.names.push("x".into());
    assert_eq!((req.names.len(), left.pop()), (1, Some(1)));
    drop(left);
    let run = service.fails_twice()?;
    Ok(format!("{inline}{run}"))
}

#[idempotent(
    key = req.id,
    name = "args.guard",
    errors(_ if req.names.is_empty() => retry(max = 5, backoff = "1ms"), _ => release),
)]
async fn guarded(service: &Service, req: Req) -> Result<u32, OrderError> {
    drop(req);
    service.fails_twice()
}

#[async_trait::async_trait]
trait Orders {
    async fn place(&self, req: Json<Req>) -> Result<u32, OrderError>;
    async fn by_reference(&self, req: &Req) -> Result<u32, OrderError>;
    async fn shared(self: Arc<Self>, id: u64) -> Result<u32, OrderError>;
}

#[async_trait::async_trait]
impl Orders for Service {
    #[idempotent(
        key = req.id,
        name = "args.async_trait",
        errors(
            OrderError::Gateway if self.runs.load(Ordering::SeqCst) > 0 => retry(max = 5, backoff = "1ms"),
            _ => release,
        ),
    )]
    async fn place(&self, Json(req): Json<Req>) -> Result<u32, OrderError> {
        assert!(req.names.is_empty());
        drop(req);
        self.fails_twice()
    }

    #[idempotent(
        key = req.id,
        fingerprint = &req.names,
        name = "args.async_trait.ref",
        errors(_ => retry(max = 2)),
    )]
    async fn by_reference(&self, req: &Req) -> Result<u32, OrderError> {
        assert_eq!(req.id, 1);
        self.fails_twice()
    }

    #[idempotent(
        key = id,
        name = "args.async_trait.arc",
        errors(_ => retry(max = 2, backoff = "1ms")),
    )]
    async fn shared(self: Arc<Self>, id: u64) -> Result<u32, OrderError> {
        assert_eq!(id, 1);
        { self }.fails_twice()
    }
}

struct PanicsOnce(Arc<AtomicU32>);

impl Clone for PanicsOnce {
    fn clone(&self) -> Self {
        assert!(self.0.fetch_add(1, Ordering::SeqCst) > 0, "the first clone");
        Self(self.0.clone())
    }
}

#[idempotent(
    key = "args.panic".len(),
    name = "args.panic",
    lease = "100ms",
    abandoned = reconcile(asked(count)),
    errors(_ => retry(max = 1)),
)]
async fn panics_before_it_asks(clones: PanicsOnce, count: &AtomicU32) -> Result<u32, OrderError> {
    drop(clones);
    Ok(1)
}

async fn asked(count: &AtomicU32) -> Result<Option<u32>, OrderError> {
    count.fetch_add(1, Ordering::SeqCst);
    std::future::ready(Ok(None)).await
}

#[idempotent(
    key = id,
    name = "args.asks",
    lease = "100ms",
    abandoned = reconcile(asked(count)),
    errors(_ => retry(max = 5, backoff = "1ms")),
)]
async fn asks_once(service: &Service, id: u64, count: &AtomicU32) -> Result<u32, OrderError> {
    service.fails_twice()
}

#[tokio::test(start_paused = true)]
async fn p5_a_retried_function_asks_only_once_what_became_of_an_earlier_attempt() {
    let idempotency = Idempotency::new(idem::MemoryStore::new());
    crash(
        idempotency
            .operation("args.asks")
            .key(&1)
            .lease(Duration::from_millis(100)),
    )
    .await;
    let service = Service {
        runs: AtomicU32::new(0),
    };
    let count = AtomicU32::new(0);
    assert_eq!(
        idem::scope(idempotency, asks_once(&service, 1, &count)).await,
        Ok(3)
    );
    assert_eq!(count.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn p5_a_body_that_panics_before_it_could_ask_leaves_the_record_abandoned() {
    let idempotency = Idempotency::new(idem::MemoryStore::new());
    crash(
        idempotency
            .operation("args.panic")
            .key(&10)
            .lease(Duration::from_millis(100)),
    )
    .await;
    let clones = PanicsOnce(Arc::default());
    let count = Arc::new(AtomicU32::new(0));
    let call = {
        let idempotency = idempotency.clone();
        let clones = PanicsOnce(clones.0.clone());
        let count = count.clone();
        async move { idem::scope(idempotency, panics_before_it_asks(clones, &count)).await }
    };
    assert!(tokio::spawn(call).await.unwrap_err().is_panic());
    assert_eq!(
        idem::scope(idempotency, panics_before_it_asks(clones, &count)).await,
        Ok(1)
    );
    assert_eq!(count.load(Ordering::SeqCst), 1);
}

#[idempotent(key = id, name = "args.macros", errors(_ => retry(max = 5, backoff = "1ms")))]
async fn only_in_macros(
    service: &Service,
    id: u64,
    text: String,
    spaced: String,
    counted: Vec<u32>,
) -> Result<String, OrderError> {
    macro_rules! length {
        ($more:expr) => {
            counted.len() + $more
        };
    }
    let run = service.fails_twice()?;
    Ok(format!("{text }{spaced  :?}{}{run}", length!(1)))
}

impl Limits {
    #[idempotent(
        key = self.id,
        name = "args.macros.self",
        errors(_ => retry(max = 5, backoff = "1ms")),
    )]
    async fn only_in_a_macro(self, service: &Service) -> Result<u32, OrderError> {
        macro_rules! base {
            ($self:ident) => {
                self.base + $self.base
            };
        }
        assert_eq!(base!(self), 2);
        service.fails_twice()
    }
}

#[tokio::test(start_paused = true)]
async fn p6_each_try_gets_arguments_that_only_macros_name() {
    let idempotency = Idempotency::new(idem::MemoryStore::new());
    idem::scope(idempotency, async {
        let service = || Service {
            runs: AtomicU32::new(0),
        };
        let answer = only_in_macros(&service(), 1, "a".into(), "b".into(), vec![1, 2]).await;
        assert_eq!(answer, Ok("a\"b\"33".to_owned()));
        let limits = Limits {
            id: 1,
            max: 2,
            base: 1,
        };
        assert_eq!(limits.only_in_a_macro(&service()).await, Ok(3));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn p6_each_try_gets_arguments_of_its_own() {
    let idempotency = Idempotency::new(idem::MemoryStore::new());
    idem::scope(idempotency, async {
        let service = || Service {
            runs: AtomicU32::new(0),
        };
        let req = || {
            Json(Req {
                id: 1,
                names: vec![],
            })
        };
        assert_eq!(service().borrowed(1).await, Ok(3));
        assert_eq!(Arc::new(service()).shared(1).await, Ok(3));
        let destructured = destructured(
            &service(),
            req(),
            "n".into(),
            vec![1],
            NotClone(1),
            NotClone(2),
        )
        .await;
        assert_eq!(destructured, Ok("n3".to_owned()));
        assert_eq!(guarded(&service(), req().0).await, Ok(3));
        assert_eq!(service().place(req()).await, Ok(3));
        assert_eq!(service().by_reference(&req().0).await, Ok(3));
        assert_eq!(Orders::shared(Arc::new(service()), 1).await, Ok(3));
    })
    .await;
}

/// Fails until it has been asked so often.
#[derive(Debug)]
struct Exclusive {
    tries: u32,
    until: u32,
}

impl Exclusive {
    fn new(until: u32) -> Self {
        Self { tries: 0, until }
    }

    fn try_once(&mut self) -> Result<u32, OrderError> {
        self.tries += 1;
        if self.tries < self.until {
            Err(OrderError::Gateway)
        } else {
            Ok(self.tries)
        }
    }

    #[idempotent(
        key = id,
        name = "args.exclusive.self",
        errors(_ => retry(max = 5, backoff = "1ms")),
    )]
    async fn method(&mut self, id: u64) -> Result<u32, OrderError> {
        tokio::task::yield_now().await;
        let this: &mut Self = self;
        this.try_once()
    }

    #[idempotent(
        key = id,
        name = "args.exclusive.typed",
        abandoned = reconcile(Self::asked(self)),
        errors(_ => retry(max = 5, backoff = "1ms")),
    )]
    async fn typed(self: &mut Self, id: u64) -> Result<u32, OrderError> {
        self.try_once()
    }

    async fn asked(&mut self) -> Result<Option<u32>, OrderError> {
        self.tries += 100;
        std::future::ready(Ok(None)).await
    }
}

#[idempotent(key = id, name = "args.exclusive", errors(_ => retry(max = 5, backoff = "1ms")))]
async fn exclusive<'a>(
    gateway: &'a mut Exclusive,
    mut log: &mut Vec<u32>,
    run: &mut (dyn FnMut() + Send),
    id: u64,
) -> Result<u32, OrderError> {
    run();
    log.push(gateway.tries);
    let mut none = Vec::new();
    let tried = gateway.try_once();
    log = &mut none;
    log.push(0);
    tried
}

#[async_trait::async_trait]
trait ExclusiveOrders {
    async fn place(&mut self, log: &mut Vec<u32>) -> Result<u32, OrderError>;
}

#[async_trait::async_trait]
impl ExclusiveOrders for Exclusive {
    #[idempotent(
        key = 1,
        name = "args.exclusive.boxed",
        errors(_ => retry(max = 5, backoff = "1ms")),
    )]
    async fn place(&mut self, log: &mut Vec<u32>) -> Result<u32, OrderError> {
        log.push(self.tries);
        self.try_once()
    }
}

#[tokio::test(start_paused = true)]
async fn p6_exclusive_references_are_lent_to_one_try_after_the_other() {
    fn assert_send<T: Send>(value: T) -> T {
        value
    }
    let idempotency = Idempotency::new(idem::MemoryStore::new());
    let mut log = Vec::new();
    idem::scope(idempotency, async {
        let mut one = Exclusive::new(3);
        assert_eq!(assert_send(one.method(1)).await, Ok(3));
        // A replay leaves it alone.
        assert_eq!((one.method(1).await, one.tries), (Ok(3), 3));
        assert_eq!(Exclusive::new(2).typed(1).await, Ok(2));
        let mut runs = 0;
        let mut run = || runs += 1;
        let call = exclusive(&mut one, &mut log, &mut run, 1);
        assert_eq!(assert_send(call).await, Ok(4));
        let mut other = Exclusive::new(7);
        let given_up = exclusive(&mut other, &mut log, &mut run, 2).await;
        assert_eq!(
            (given_up, other.tries, runs),
            (Err(OrderError::Gateway), 6, 7)
        );
        assert_eq!(Exclusive::new(2).place(&mut log).await, Ok(2));
    })
    .await;
    assert_eq!(log, [3, 0, 1, 2, 3, 4, 5, 0, 1]);
    // Without a record as well.
    assert_eq!(
        idem::scope(Idempotency::disabled(), Exclusive::new(3).method(1)).await,
        Ok(3)
    );
}

#[derive(Debug, Clone)]
struct Limits {
    id: u64,
    max: u32,
    base: u64,
}

#[idempotent(
    key = id,
    name = "args.cfg",
    detached,
    errors(_ => retry(max = 1, backoff = "1ms")),
)]
async fn conditional(
    id: u64,
    #[cfg(any())] absent: NotThere,
    #[cfg(any())] _: NotThere,
    #[cfg(all())] present: String,
) -> Result<u32, OrderError> {
    #[cfg(any())]
    drop(absent);
    Ok(present.parse().unwrap())
}

#[idempotent(
    key = limits.id,
    name = "args.max",
    errors(_ => retry(max = limits.max, backoff = "1ms")),
)]
async fn as_often_as_it_says(runs: &AtomicU32, limits: Limits) -> Result<u32, OrderError> {
    drop(limits);
    runs.fetch_add(1, Ordering::SeqCst);
    Err(OrderError::Gateway)
}

macro_rules! waits_as_both_say {
    ($name:ident, $text:literal $($detached:ident)?) => {
        #[idempotent(
            key = limits.id,
            name = $text,
            $($detached,)?
            errors(
                OrderError::RateLimited(after) => retry(max = 2, backoff = *after + Duration::from_millis(limits.base)),
                _ if limits.max > 3 => keep,
                _ => release,
            ),
        )]
        async fn $name(runs: Arc<AtomicU32>, mut limits: Limits) -> Result<u32, OrderError> {
            limits.base = 0;
            drop(limits);
            if runs.fetch_add(1, Ordering::SeqCst) == 0 { Err(OrderError::RateLimited(SHORT)) } else { Ok(2) }
        }
    };
}

waits_as_both_say!(waits_in_place, "args.both");
waits_as_both_say!(waits_detached, "args.both.detached" detached);

#[idempotent(
    key = ids.first().copied().ok_or(OrderError::Down)?,
    name = "args.question",
    missing_key = run,
)]
async fn fails_in_the_key(ids: &[Option<u32>]) -> Result<u32, OrderError> {
    Ok(ids[0].unwrap_or(7))
}

#[tokio::test(start_paused = true)]
async fn p6_actions_may_compute_with_arguments_that_the_body_uses_up() {
    let idempotency = Idempotency::new(idem::MemoryStore::new());
    idem::scope(idempotency, async {
        let limits = Limits {
            id: 1,
            max: 2,
            base: 1,
        };
        assert_eq!(conditional(1, "7".to_owned()).await, Ok(7));
        let runs = AtomicU32::new(0);
        assert_eq!(
            as_often_as_it_says(&runs, limits.clone()).await,
            Err(OrderError::Gateway)
        );
        assert_eq!(runs.load(Ordering::SeqCst), 3);
        assert_eq!(waits_in_place(Arc::default(), limits.clone()).await, Ok(2));
        assert_eq!(waits_detached(Arc::default(), limits).await, Ok(2));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn p7_a_key_that_fails_is_the_function_s_error_beside_missing_key_too() {
    idem::scope(Idempotency::new(idem::MemoryStore::new()), async {
        assert_eq!(fails_in_the_key(&[]).await, Err(OrderError::Down));
        assert_eq!(fails_in_the_key(&[None]).await, Ok(7));
        assert_eq!(fails_in_the_key(&[Some(3)]).await, Ok(3));
    })
    .await;
}
