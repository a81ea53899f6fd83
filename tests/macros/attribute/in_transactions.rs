//! Transactions in spawned tasks and in handlers of a real router: their futures are `Send`,
//! whatever the body borrows or owns.

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use idem::sqlx::{self, SqlitePool, SqliteTransaction};
use idem::{Outcome, SqliteStore};
use tower::ServiceExt as _;

use super::*;

#[derive(Debug, thiserror::Error)]
enum OrderError {
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    Idempotency(#[from] idem::Error),
}

#[derive(Clone)]
struct Shop {
    pool: SqlitePool,
    idempotency: Idempotency,
}

impl Shop {
    async fn open() -> Self {
        let pool = sqlx::sqlite::SqlitePoolOptions::new()
            .max_connections(1)
            .connect("sqlite::memory:")
            .await
            .unwrap();
        let store = SqliteStore::new(pool.clone());
        store.migrate().await.unwrap();
        sqlx::raw_sql("CREATE TABLE orders (item TEXT NOT NULL)")
            .execute(&pool)
            .await
            .unwrap();
        Self {
            pool,
            idempotency: Idempotency::new(store),
        }
    }

    fn order(&self, id: u64) -> idem::Operation<'static> {
        self.idempotency.operation("shop.order").key(&id)
    }

    async fn orders(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM orders")
            .fetch_one(&self.pool)
            .await
            .unwrap()
    }
}

async fn insert(tx: &mut SqliteTransaction<'_>, item: &str) -> Result<String, OrderError> {
    sqlx::query("INSERT INTO orders VALUES (?)")
        .bind(item)
        .execute(&mut **tx)
        .await?;
    Ok(item.to_owned())
}

/// The handler's body borrows what the request has, and the state.
async fn borrows(
    State(shop): State<Shop>,
    Path(id): Path<u64>,
    Json(items): Json<Vec<String>>,
) -> Result<String, StatusCode> {
    let first = &items[0];
    let count = items.len();
    let outcome = shop.order(id).transaction(&shop.pool, async |tx| {
        for item in items.iter().skip(1) {
            insert(tx, item).await?;
        }
        insert(tx, first)
            .await
            .map(|item| format!("{count} {item}"))
    });
    outcome
        .await
        .map(Outcome::into_inner)
        .map_err(|_: OrderError| StatusCode::SERVICE_UNAVAILABLE)
}

/// The handler's body owns what it uses, and uses it up.
async fn owns(
    State(shop): State<Shop>,
    Path(id): Path<u64>,
    Json(items): Json<Vec<String>>,
) -> Result<String, StatusCode> {
    let pool = shop.pool.clone();
    let outcome = shop.order(id).transaction(&pool, async move |tx| {
        let mut all = String::new();
        for item in items {
            insert(tx, &item).await?;
            all.push_str(&item);
        }
        Ok(all)
    });
    outcome
        .await
        .map(Outcome::into_inner)
        .map_err(|_: OrderError| StatusCode::SERVICE_UNAVAILABLE)
}

/// The handler has the transaction itself.
async fn runs_in(
    State(shop): State<Shop>,
    Path(id): Path<u64>,
    Json(items): Json<Vec<String>>,
) -> Result<String, StatusCode> {
    let served = async {
        let mut tx = shop.pool.begin_with("BEGIN IMMEDIATE").await?;
        let item = &items[0];
        let outcome = shop
            .order(id)
            .run_in(&mut tx, async |tx| insert(tx, item).await)
            .await?;
        tx.commit().await?;
        Ok::<_, OrderError>(outcome.into_inner())
    };
    served.await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)
}

#[tokio::test]
async fn transactions_run_in_handlers_and_replay_to_duplicates() {
    let shop = Shop::open().await;
    let router = Router::new()
        .route("/borrows/{id}", post(borrows))
        .route("/owns/{id}", post(owns))
        .route("/runs_in/{id}", post(runs_in))
        .with_state(shop.clone());
    for (path, answer) in [
        ("/borrows/1", "2 tea"),
        ("/owns/2", "teacake"),
        ("/runs_in/3", "tea"),
    ] {
        for _ in 0..2 {
            let request = Request::post(path).header("content-type", "application/json");
            let request = request.body(Body::from(r#"["tea","cake"]"#)).unwrap();
            let response = router.clone().oneshot(request).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK, "{path}");
            let body = axum::body::to_bytes(response.into_body(), usize::MAX)
                .await
                .unwrap();
            assert_eq!(body, answer, "{path}");
        }
    }
    assert_eq!(shop.orders().await, 5);
}

#[tokio::test]
async fn transactions_can_be_spawned_with_bodies_that_borrow_from_their_task() {
    let shop = Shop::open().await;
    let calls: Vec<_> = (0..4)
        .map(|number| {
            let shop = shop.clone();
            let items = vec!["tea".to_owned(), format!("cake {number}")];
            tokio::spawn(async move {
                let counted = AtomicU32::new(0);
                let rerun = |error: &OrderError| matches!(error, OrderError::Database(_));
                let outcome = shop
                    .order(1)
                    .rerun_when(rerun)
                    .transaction(&shop.pool, async |tx| {
                        counted.fetch_add(1, Ordering::Relaxed);
                        for item in &items {
                            insert(tx, item).await?;
                        }
                        Ok::<_, OrderError>(items.len())
                    });
                outcome.await.unwrap().into_inner()
            })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap(), 2);
    }
    assert_eq!(shop.orders().await, 2);
}

#[tokio::test]
async fn what_a_body_owns_is_the_same_in_each_run_of_its_transaction() {
    let shop = Shop::open().await;
    let runs = AtomicU32::new(0);
    let counted = &runs;
    let mut item = "tea".to_owned();
    let rerun = |_: &OrderError| counted.load(Ordering::Relaxed) < 3;
    let outcome = shop
        .order(1)
        .rerun_when(rerun)
        .transaction(&shop.pool, async move |tx| {
            item.push('!');
            insert(tx, &item).await?;
            if counted.fetch_add(1, Ordering::Relaxed) < 2 {
                return Err(OrderError::Database(sqlx::Error::WorkerCrashed));
            }
            Ok(item)
        });
    assert_eq!(outcome.await.unwrap().into_inner(), "tea!");
    assert_eq!((runs.into_inner(), shop.orders().await), (3, 1));
}

#[tokio::test]
async fn a_body_that_cannot_move_to_another_thread_has_the_local_methods() {
    let shop = Shop::open().await;
    let mut runs = 0;
    let item = std::rc::Rc::new("tea".to_owned());
    let rerun = |_: &OrderError| item.is_empty();
    let outcome = shop
        .order(1)
        .rerun_when(rerun)
        .transaction_local(&shop.pool, async |tx| {
            runs += 1;
            let item = item.clone();
            insert(tx, &item).await
        });
    assert_eq!(outcome.await.unwrap().into_inner(), "tea");
    let mut tx = shop.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let outcome = shop.order(2).run_in_local(&mut tx, async |tx| {
        runs += 1;
        let item = item.clone();
        insert(tx, &item).await
    });
    assert_eq!(outcome.await.unwrap().into_inner(), "tea");
    tx.commit().await.unwrap();
    assert_eq!((runs, shop.orders().await), (2, 2));
}

#[idempotent(name = "shop.named", key = item, transaction = tx, runtime = shop.idempotency)]
async fn named<'a, 'tx: 'a>(
    shop: &'a Shop,
    tx: &'a mut SqliteTransaction<'tx>,
    item: &'a str,
) -> Result<String, OrderError> {
    insert(tx, item).await
}

#[async_trait::async_trait]
trait Orders: Send + Sync {
    async fn place(&self, tx: &mut SqliteTransaction<'_>, item: &str)
    -> Result<String, OrderError>;
}

#[async_trait::async_trait]
impl Orders for Shop {
    #[idempotent(name = "shop.place", key = item, transaction = tx, runtime = self.idempotency)]
    async fn place(
        &self,
        tx: &mut SqliteTransaction<'_>,
        item: &str,
    ) -> Result<String, OrderError> {
        insert(tx, item).await
    }
}

#[tokio::test]
async fn annotated_functions_can_be_spawned_with_any_lifetime_of_their_transaction() {
    let shop = Shop::open().await;
    for _ in 0..2 {
        let shop = shop.clone();
        let call = tokio::spawn(async move {
            let mut tx = shop.pool.begin_with("BEGIN IMMEDIATE").await?;
            let orders: &dyn Orders = &shop;
            let items = [
                named(&shop, &mut tx, "tea").await?,
                orders.place(&mut tx, "cake").await?,
            ];
            tx.commit().await?;
            Ok::<_, OrderError>(items)
        });
        assert_eq!(call.await.unwrap().unwrap(), ["tea", "cake"]);
    }
    assert_eq!(shop.orders().await, 2);
}

/// An order with the lifetime of its transaction.
struct Order<'tx> {
    shop: Shop,
    item: &'tx str,
}

impl<'tx> Order<'tx> {
    async fn insert(&self, tx: &mut SqliteTransaction<'tx>) -> Result<String, OrderError> {
        insert(tx, self.item).await
    }

    #[idempotent(
        name = "order.place",
        key = self.item,
        transaction = tx,
        runtime = self.shop.idempotency,
    )]
    async fn of_the_type(&self, tx: &mut SqliteTransaction<'tx>) -> Result<String, OrderError> {
        self.insert(tx).await
    }
}

#[idempotent(
    name = "order.shared",
    key = order.item,
    transaction = tx,
    runtime = order.shop.idempotency,
)]
async fn of_a_parameter<'tx>(
    order: &Order<'tx>,
    tx: &mut SqliteTransaction<'tx>,
) -> Result<String, OrderError> {
    order.insert(tx).await
}

#[idempotent(name = "shop.body", key = item, transaction = tx, runtime = shop.idempotency)]
async fn of_the_body<'tx>(
    shop: &Shop,
    tx: &mut SqliteTransaction<'tx>,
    item: &str,
) -> Result<String, OrderError> {
    let tx: &mut SqliteTransaction<'tx> = tx;
    insert(tx, item).await
}

async fn insert_static(
    tx: &mut SqliteTransaction<'static>,
    item: &str,
) -> Result<String, OrderError> {
    insert(tx, item).await
}

#[idempotent(name = "shop.static", key = item, transaction = tx, runtime = shop.idempotency)]
async fn of_the_program(
    shop: &Shop,
    tx: &mut SqliteTransaction<'static>,
    item: &str,
) -> Result<String, OrderError> {
    insert_static(tx, item).await
}

#[tokio::test]
async fn a_body_has_the_lifetime_of_its_transaction_that_other_code_names() {
    let shop = Shop::open().await;
    let mut tx = shop.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    assert_eq!(of_the_program(&shop, &mut tx, "tea").await.unwrap(), "tea");
    assert_eq!(of_the_body(&shop, &mut tx, "cake").await.unwrap(), "cake");
    let order = Order {
        shop: shop.clone(),
        item: "jam",
    };
    assert_eq!(order.of_the_type(&mut tx).await.unwrap(), "jam");
    assert_eq!(of_a_parameter(&order, &mut tx).await.unwrap(), "jam");
    tx.commit().await.unwrap();
    assert_eq!(shop.orders().await, 4);
}
