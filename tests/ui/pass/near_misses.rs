//! What looks like a mistake and is none.

use std::sync::Arc;
use std::time::Duration;

use idem::{Error, ErrorPolicy, Idempotency, MemoryStore, idempotent};

#[derive(Clone, serde::Serialize)]
struct Req {
    order_id: u64,
    ids: Vec<u64>,
    tries: u32,
    kind: Kind,
}

impl Req {
    fn new() -> Self {
        Self {
            order_id: 1,
            ids: vec![2, 3],
            tries: 3,
            kind: Kind::Parcel(4),
        }
    }
}

#[derive(Clone, Copy, serde::Serialize)]
#[allow(dead_code)]
enum Kind {
    Letter,
    Parcel(u32),
}

#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize, thiserror::Error)]
enum OrderError {
    #[error("declined: {0}")]
    Declined(u16),
    #[error("after {after:?}: {reason}")]
    RateLimited { after: Duration, reason: String },
    #[error("timeout")]
    Timeout,
    #[error("{0}")]
    #[serde(skip)]
    Idempotency(String),
}

impl From<Error> for OrderError {
    fn from(error: Error) -> Self {
        Self::Idempotency(error.to_string())
    }
}

/// A result with its error left out, as many crates have one.
type Result<T, E = Error> = std::result::Result<T, E>;

fn first(id: (u64, u64)) -> u64 {
    id.0
}

#[allow(non_upper_case_globals)]
static lower_static: &str = "acme";

mod keys {
    use super::*;

    #[idempotent(key = req.ids.iter().map(|id| id + 1).sum::<u64>())]
    async fn a_name_of_a_closure(req: &Req) -> Result<u64> {
        Ok(req.order_id)
    }

    #[idempotent(key = "match req.kind { Kind::Letter => 0, Kind::Parcel(grams) => grams }")]
    async fn a_name_of_a_match(req: &Req) -> Result<u64> {
        Ok(req.order_id)
    }

    #[idempotent(key = { let digits = req.order_id; digits % 100 })]
    async fn a_name_of_a_let(req: &Req) -> Result<u64> {
        Ok(req.order_id)
    }

    #[idempotent(key = if let Kind::Parcel(grams) = req.kind { Some(grams) } else { None })]
    async fn a_name_of_an_if_let(req: &Req) -> Result<u64> {
        Ok(req.order_id)
    }

    #[idempotent(key = "pairs.iter().copied().map(first).sum::<u64>()")]
    async fn a_function_as_an_argument(pairs: &[(u64, u64)]) -> Result<u64> {
        Ok(pairs.len() as u64)
    }

    #[idempotent(key = (self::lower_static, "req.order_id"))]
    async fn a_static_in_lower_case(req: &Req) -> Result<u64> {
        Ok(req.order_id)
    }

    #[idempotent(key = format!("{}-{id}", req.order_id, id = req.order_id))]
    async fn a_name_of_a_format(req: &Req) -> Result<u64> {
        Ok(req.order_id)
    }

    #[idempotent(key = N as u64, name = "near_misses.const_generic")]
    async fn a_constant_parameter<const N: usize>(ids: [u64; N]) -> Result<u64> {
        Ok(ids.iter().sum())
    }

    #[idempotent(key = n, name = "near_misses.const_generic_in_lower_case")]
    #[allow(non_upper_case_globals)]
    async fn a_constant_parameter_in_lower_case<const n: usize>(ids: [u64; n]) -> Result<u64> {
        Ok(ids.iter().sum())
    }

    #[idempotent(key = r#type)]
    async fn a_raw_name(r#type: u64) -> Result<u64> {
        Ok(r#type)
    }

    #[idempotent(key = "r#type")]
    async fn a_raw_name_in_a_string(r#type: u64) -> Result<u64> {
        Ok(r#type)
    }

    #[idempotent(key = id)]
    async fn a_parameter_that_the_body_does_not_use(id: u64) -> Result<u64> {
        Ok(0)
    }

    #[idempotent(key = "req.order_id", ttl = "5m", remember = "5m")]
    async fn remembers_no_longer(req: Req) -> Result<u64> {
        Ok(req.order_id)
    }

    #[idempotent(key = (a, a, a, a, a, a, a, (a, a)), fingerprint = (a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a))]
    async fn as_many_parts_as_there_may_be(a: u64) -> Result<u64> {
        Ok(a)
    }

    #[idempotent(key = id, missing_key = run)]
    async fn a_text_may_be_empty(id: &str) -> Result<u64> {
        Ok(id.len() as u64)
    }

    #[idempotent(key = (id, note), missing_key = run)]
    async fn a_part_may_be_missing(id: u64, note: Option<String>) -> Result<u64> {
        Ok(id + note.map_or(0, |note| note.len() as u64))
    }

    pub(super) async fn all() -> Vec<Result<u64>> {
        let req = Req::new();
        vec![
            a_name_of_a_closure(&req).await,
            a_name_of_a_match(&req).await,
            a_name_of_a_let(&req).await,
            a_name_of_an_if_let(&req).await,
            a_function_as_an_argument(&[(1, 2)]).await,
            a_static_in_lower_case(&req).await,
            a_name_of_a_format(&req).await,
            a_constant_parameter([1, 2]).await,
            a_constant_parameter_in_lower_case([1, 2]).await,
            a_raw_name(1).await,
            a_raw_name_in_a_string(1).await,
            a_parameter_that_the_body_does_not_use(1).await,
            remembers_no_longer(req).await,
            as_many_parts_as_there_may_be(1).await,
            a_text_may_be_empty("").await,
            a_part_may_be_missing(1, None).await,
        ]
    }
}

mod borrows {
    use super::*;

    pub(super) struct Service {
        pub(super) idempotency: Idempotency,
        pub(super) last: u64,
    }

    impl Service {
        #[idempotent(key = id, name = "near_misses.self", runtime = self.idempotency, detached)]
        pub(super) async fn a_detached_body_without_self(&self, id: u64) -> Result<u64> {
            Ok(id)
        }

        #[idempotent(key = id, name = "near_misses.arc", runtime = self.idempotency, detached)]
        pub(super) async fn a_detached_body_of_an_arc(self: Arc<Self>, id: u64) -> Result<u64> {
            Ok(id + self.last)
        }

        #[idempotent(key = id, name = "near_misses.mut", runtime = self.idempotency, errors(_ => retry(max = 1)))]
        pub(super) async fn a_retried_body_without_self(&mut self, id: u64) -> Result<u64> {
            Ok(id)
        }
    }

    #[idempotent(key = id, detached)]
    pub(super) async fn a_text_that_lives_for_ever(id: &'static str) -> Result<u64> {
        Ok(id.len() as u64)
    }

    #[idempotent(key = id, detached)]
    pub(super) async fn a_detached_body_without_what_is_borrowed(
        id: &str,
        number: u64,
    ) -> Result<u64> {
        Ok(number)
    }

    #[idempotent(key = log.len(), errors(_ => retry(max = 1)))]
    pub(super) async fn a_retried_body_without_what_is_exclusive(
        log: &mut [u64],
        number: u64,
    ) -> Result<u64> {
        Ok(number)
    }

    #[idempotent(key = id, errors(_ => retry(max = 1)))]
    pub(super) async fn a_retried_body_without_what_is_not_clone(
        id: u64,
        _job: NotClone,
    ) -> Result<u64> {
        Ok(id)
    }

    pub(super) struct NotClone;

    #[idempotent(key = id, errors(_ if *log == 0 => release, _ => keep))]
    pub(super) async fn a_guard_that_uses_a_reference(
        id: u64,
        log: &u64,
    ) -> Result<u64, OrderError> {
        Ok(id + log)
    }

    #[idempotent(key = id, errors(_ if id == 0 => release, _ => retry(max = 1)))]
    pub(super) async fn a_guard_that_uses_a_copy(
        id: u64,
        log: Vec<u64>,
    ) -> Result<u64, OrderError> {
        Ok(id + log.into_iter().sum::<u64>())
    }
}

/// Names that a parameter has too, where none of them means it.
mod same_names {
    use super::*;

    /// Not `Clone`, so a retried body must not use it.
    pub(super) struct Tenant(pub(super) u64);

    mod audit {
        pub(super) fn tenant(id: u64) -> u64 {
            id
        }
    }

    mod operations {
        pub(super) const fn charge() -> &'static str {
            "near_misses.charged"
        }
    }

    #[derive(serde::Deserialize)]
    pub(super) struct V1 {
        total: String,
    }

    mod v1 {
        use super::V1;

        pub(super) fn id(earlier: V1) -> u64 {
            earlier.total.into_bytes().len() as u64
        }
    }

    #[idempotent(key = tenant.0, errors(_ => retry(max = 1)))]
    pub(super) async fn of_a_function(id: u64, tenant: Tenant) -> Result<u64> {
        Ok(audit::tenant(id))
    }

    #[idempotent(key = tenant.0, errors(_ => retry(max = 1)))]
    pub(super) async fn of_a_label(id: u64, tenant: Tenant) -> Result<u64> {
        let mut count = id;
        'tenant: for ten in 1..3 {
            for one in 1..9 {
                count += ten * one;
                if count > 3 {
                    break 'tenant;
                }
            }
        }
        Ok(count)
    }

    #[idempotent(key = tenant.0, errors(_ => retry(max = 1)))]
    pub(super) async fn of_a_text(id: u64, tenant: Tenant) -> Result<u64> {
        let path = "/tenants/{tenant}";
        Ok(id + path.len() as u64)
    }

    #[idempotent(key = ids.len(), errors(_ => retry(max = 1)))]
    pub(super) async fn after_a_captured_lifetime(ids: Vec<u64>) -> Result<u64> {
        fn doubled(of: &[u64]) -> impl Iterator<Item = u64> + use<'_> {
            of.iter().map(|id| id * 2)
        }
        Ok(doubled(&ids).sum::<u64>() + ids.into_iter().sum::<u64>())
    }

    #[idempotent(key = order.order_id, outcome_version = 2, upgrade(1 => |order: V1| order.total.into_bytes().len() as u64))]
    pub(super) async fn of_a_closure(order: &Req) -> Result<u64> {
        Ok(order.order_id)
    }

    #[idempotent(key = id, outcome_version = 2, upgrade(1 => v1::id))]
    pub(super) async fn of_an_upgrade(id: u64) -> Result<u64> {
        Ok(id)
    }

    #[idempotent(key = charge, name = operations::charge())]
    pub(super) async fn of_a_name(charge: u64) -> Result<u64> {
        Ok(charge)
    }
}

mod fields {
    use super::*;

    #[idempotent(key = id, errors(_ if req.ids.is_empty() => release, _ => keep))]
    pub(super) async fn a_guard_and_a_body_with_a_field_each(
        id: u64,
        req: Req,
    ) -> Result<u32, OrderError> {
        Ok(req.tries)
    }
}

mod arms {
    use super::*;
    use OrderError::{RateLimited, Timeout};

    const LONG: Duration = Duration::from_secs(60);

    #[idempotent(
        key = req.order_id,
        errors(
            | OrderError::Declined(1..=50 | 52) | OrderError::Timeout if req.order_id == 0 => keep,
            OrderError::Declined(code @ 100..) if *code % 2 == 0 => keep(ttl = LONG),
            OrderError::Declined(99) => retry(max = 1, then = abandon),
            OrderError::Declined(_) => abandon,
            RateLimited { after, reason } if reason.is_empty() && *after > LONG => retry(max = 1, backoff = *after),
            RateLimited { after: pause, .. } => retry(max = 1, backoff = *pause / 2, max_backoff = "1s", then = keep),
            &Timeout => retry(max = req.tries, backoff = "1ms", then = keep(ttl = "1h")),
            error @ OrderError::Idempotency(text) if text.len() > 3 && error.to_string() == *text => release,
            OrderError::Idempotency(_) => release,
        )
    )]
    pub(super) async fn every_form(req: &Req) -> Result<u64, OrderError> {
        Ok(req.order_id)
    }

    #[idempotent(key = id, errors(_error => keep))]
    pub(super) async fn one_name_for_all(id: u64) -> Result<u64, OrderError> {
        Ok(id)
    }

    #[derive(
        Debug, PartialEq, serde::Serialize, serde::Deserialize, thiserror::Error, ErrorPolicy,
    )]
    pub(super) enum Boxed {
        #[error(transparent)]
        #[idem(inner)]
        Order(Box<Plain>),
        #[error("{0}")]
        #[serde(skip)]
        Idempotency(String),
    }

    #[derive(
        Debug, PartialEq, serde::Serialize, serde::Deserialize, thiserror::Error, ErrorPolicy,
    )]
    #[error("plain")]
    #[idem(keep)]
    pub(super) struct Plain;

    impl From<Error> for Boxed {
        fn from(error: Error) -> Self {
            Self::Idempotency(error.to_string())
        }
    }

    #[derive(
        Debug, PartialEq, serde::Serialize, serde::Deserialize, idem::KeyPart, ErrorPolicy,
    )]
    #[idem(crate = "::idem", dispose)]
    pub(super) enum KeyAndPolicy {
        #[idem(dead_letter)]
        Unreadable,
        #[idem(release, redeliver = "1m")]
        Down(u64),
    }

    #[idempotent(key = id)]
    pub(super) async fn a_policy_in_a_box(id: u64) -> Result<u64, Boxed> {
        Ok(id)
    }

    #[idempotent(key = id)]
    pub(super) async fn any_error(
        id: u64,
    ) -> Result<u64, Box<dyn std::error::Error + Send + Sync>> {
        Ok(id)
    }
}

mod under_async_trait {
    use super::*;

    #[async_trait::async_trait]
    pub(super) trait Gateway {
        async fn charge(&self, req: Req, (first, second): (u64, u64)) -> Result<u64, OrderError>;
    }

    pub(super) struct Bank {
        pub(super) last: u16,
    }

    #[async_trait::async_trait]
    impl Gateway for Bank {
        #[idempotent(
            key = (req.order_id, first),
            name = "near_misses.charge",
            errors(
                OrderError::Declined(code) if self.is_final(*code) => keep,
                OrderError::Timeout | OrderError::RateLimited { .. } => retry(max = 2, backoff = "1ms"),
                _ => release,
            )
        )]
        async fn charge(&self, req: Req, (first, second): (u64, u64)) -> Result<u64, OrderError> {
            Ok(req.order_id + first + second)
        }
    }

    impl Bank {
        fn is_final(&self, code: u16) -> bool {
            code > self.last
        }
    }
}

mod under_macro_rules {
    use super::*;

    macro_rules! guarded {
        ($name:ident, $req:ident: $ty:ty, $key:expr, $ttl:literal, $pattern:pat => $action:ident, $body:block) => {
            #[idempotent(key = $key, ttl = $ttl, fingerprint = ($req.order_id, $key), errors($pattern => $action, _ => release))]
            pub(super) async fn $name($req: $ty) -> Result<u64, OrderError> $body
        };
    }

    guarded!(of_fragments, req: &Req, req.order_id + 1, "5m", OrderError::Declined(_) => keep, {
        Ok(req.order_id)
    });

    macro_rules! with_its_own_key {
        ($name:ident, $ty:ty) => {
            #[idempotent(key = "req.order_id", crate = $crate::near_misses::idem_again)]
            pub(super) async fn $name(req: $ty) -> Result<u64, OrderError> {
                Ok(req.order_id)
            }
        };
    }

    with_its_own_key!(of_a_type, Req);
}

use ::idem as idem_again;

#[tokio::test]
async fn what_looks_like_a_mistake_and_is_none_runs() {
    use under_async_trait::Gateway as _;

    let idempotency = Idempotency::new(MemoryStore::new());
    idem::scope(idempotency.clone(), async {
        for answer in keys::all().await {
            answer.unwrap();
        }
        let mut service = borrows::Service {
            idempotency,
            last: 1,
        };
        assert_eq!(service.a_detached_body_without_self(1).await.unwrap(), 1);
        assert_eq!(service.a_retried_body_without_self(1).await.unwrap(), 1);
        assert_eq!(
            Arc::new(service)
                .a_detached_body_of_an_arc(1)
                .await
                .unwrap(),
            2
        );
        assert_eq!(borrows::a_text_that_lives_for_ever("id").await.unwrap(), 2);
        assert_eq!(
            borrows::a_detached_body_without_what_is_borrowed("id", 1)
                .await
                .unwrap(),
            1
        );
        assert_eq!(
            borrows::a_retried_body_without_what_is_exclusive(&mut [1], 1)
                .await
                .unwrap(),
            1
        );
        assert_eq!(
            borrows::a_retried_body_without_what_is_not_clone(1, borrows::NotClone)
                .await
                .unwrap(),
            1
        );
        assert_eq!(borrows::a_guard_that_uses_a_reference(1, &2).await, Ok(3));
        assert_eq!(borrows::a_guard_that_uses_a_copy(1, vec![2]).await, Ok(3));
        assert_eq!(
            same_names::of_a_function(1, same_names::Tenant(1))
                .await
                .unwrap(),
            1
        );
        assert_eq!(
            same_names::of_a_label(1, same_names::Tenant(1))
                .await
                .unwrap(),
            4
        );
        assert_eq!(
            same_names::of_a_text(1, same_names::Tenant(1))
                .await
                .unwrap(),
            18
        );
        assert_eq!(
            same_names::after_a_captured_lifetime(vec![1, 2])
                .await
                .unwrap(),
            9
        );
        assert_eq!(same_names::of_a_closure(&Req::new()).await.unwrap(), 1);
        assert_eq!(same_names::of_an_upgrade(1).await.unwrap(), 1);
        assert_eq!(same_names::of_a_name(1).await.unwrap(), 1);
        assert_eq!(
            fields::a_guard_and_a_body_with_a_field_each(1, Req::new()).await,
            Ok(3)
        );
        assert_eq!(arms::every_form(&Req::new()).await, Ok(1));
        assert_eq!(arms::one_name_for_all(1).await, Ok(1));
        assert_eq!(arms::a_policy_in_a_box(1).await, Ok(1));
        assert_eq!(
            idem::Key::encode(&arms::KeyAndPolicy::Unreadable)
                .unwrap()
                .as_str(),
            "Unreadable"
        );
        assert_ne!(arms::KeyAndPolicy::Down(1), arms::KeyAndPolicy::Unreadable);
        assert_eq!(arms::any_error(1).await.unwrap(), 1);
        assert_eq!(
            under_async_trait::Bank { last: 50 }
                .charge(Req::new(), (1, 2))
                .await,
            Ok(4)
        );
        assert_eq!(under_macro_rules::of_fragments(&Req::new()).await, Ok(1));
        assert_eq!(under_macro_rules::of_a_type(Req::new()).await, Ok(1));
    })
    .await;
}
