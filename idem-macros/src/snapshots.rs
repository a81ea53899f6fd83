//! The generated code, for reviewers of a change: `idem-macros/snapshots`. `cargo xtask bless`
//! rewrites them.

use expect_test::{ExpectFile, expect_file};
use proc_macro2::TokenStream;
use quote::quote;

use crate::{error_policy, expand, key_part};

#[track_caller]
fn assert_expands(tokens: &TokenStream, to: &ExpectFile) {
    let file = syn::parse2(tokens.clone()).unwrap_or_else(|error| panic!("{error}:\n{tokens}"));
    to.assert_eq(&prettyplease::unparse(&file));
}

#[test]
fn of_a_plain_function_as_printed_in_the_architecture() {
    let item = quote! {
        /// Creates an order.
        pub async fn create_order(req: CreateOrder) -> Result<Receipt, OrderError> {
            charge(&req).await
        }
    };
    let expansion = expand::idempotent(quote!(key = "req.order_id", ttl = "5m"), &item);
    assert_expands(&expansion, &expect_file!["../snapshots/plain.rs"]);
    let architecture =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../ARCHITECTURE.md"))
            .unwrap();
    let printed =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/snapshots/plain.rs"))
            .unwrap();
    assert!(
        architecture.contains(&printed),
        "copy idem-macros/snapshots/plain.rs into ARCHITECTURE.md again"
    );
}

#[test]
fn of_errors() {
    let args = quote! {
        key = req.id,
        errors(
            OrderError::Declined { .. } => keep,
            OrderError::RateLimited(after) if *after < MAX => retry(max = 3, backoff = *after, then = keep(ttl = req.keep)),
            OrderError::Down | OrderError::Gateway(Gateway::Timeout) => retry(max = 3, backoff = "100ms"),
            OrderError::TimedOut => abandon,
            _ => release,
        )
    };
    let item = quote! {
        async fn charge(mut req: Req, gateway: &Gateway, unused: u8) -> Result<u64, OrderError> {
            gateway.charge(req).await
        }
    };
    assert_expands(
        &expand::idempotent(args, &item),
        &expect_file!["../snapshots/errors.rs"],
    );
}

#[test]
fn in_a_transaction() {
    let args = quote!(key = req.order_id, fingerprint = req, transaction = tx);
    let item = quote! {
        async fn create_order(tx: &mut PgTransaction<'_>, req: &CreateOrder) -> Result<Receipt, OrderError> {
            insert(tx, req).await
        }
    };
    assert_expands(
        &expand::idempotent(args, &item),
        &expect_file!["../snapshots/transaction.rs"],
    );
}

#[test]
fn of_options() {
    let args = quote! {
        key = ("req.a + 1", (TENANT, req.b)), fingerprint = (req,), in_flight = wait(req.time), duplicate = reject,
        abandoned = reconcile("self.find(&req)"), store_failure = run, max_attempts = 3, missing_key = run,
        runtime = self.idempotency, name = "orders.charge", crate = "crate::idem", detached, errors(policy), observe,
        outcome_version = 2, upgrade(1 => from_v1)
    };
    let item = quote!(
        async fn charge(self: Arc<Self>, req: Req) -> R {
            self.charge(req).await
        }
    );
    assert_expands(
        &expand::idempotent(args, &item),
        &expect_file!["../snapshots/options.rs"],
    );
}

#[test]
fn under_async_trait() {
    let item = quote! {
        fn charge<'life0, 'life1, 'async_trait>(
            &'life0 self,
            __arg1: Json<Req>,
            gateway: &'life1 Gateway,
        ) -> Pin<Box<dyn Future<Output = R> + Send + 'async_trait>> {
            Box::pin(async move {
                if let ::core::option::Option::Some(__ret) = ::core::option::Option::None::<R> {
                    #[allow(unreachable_code)]
                    return __ret;
                }
                let __self = self;
                let Json(req) = __arg1;
                let __ret: R = { gateway.charge(__self, req) };
                #[allow(unreachable_code)]
                __ret
            })
        }
    };
    let args = quote!(key = (self.id, self::id(&req)), name = "orders.charge", errors(E::A if self.again() => retry(max = 1)));
    assert_expands(
        &expand::idempotent(args, &item),
        &expect_file!["../snapshots/async_trait.rs"],
    );
}

#[test]
fn of_derives() {
    let policy = error_policy::derive(quote! {
        enum OrderError {
            #[idem(keep(ttl = "1h"))]
            Declined { code: u16 },
            #[idem(retry(max = 3, backoff = "100ms", max_backoff = LONGEST, then = abandon))]
            Gateway,
            #[idem(inner)]
            Stock(StockError),
            Other(String),
        }
    });
    let wrapper = error_policy::derive(quote! {
        #[idem(crate = "crate::idem", inner)]
        struct Traced<E> {
            error: E,
        }
    });
    let key = key_part::derive(quote! {
        #[idem(crate = "crate::idem")]
        enum Payee<T> {
            Customer(T),
            Merchant { shop: ShopId, till: u32 },
            House,
        }
    });
    assert_expands(
        &quote!(#policy #wrapper #key),
        &expect_file!["../snapshots/derives.rs"],
    );
}

#[test]
fn of_dispositions() {
    let policy = error_policy::derive(quote! {
        enum HandleError {
            #[idem(dead_letter)]
            Unreadable(String),
            #[idem(abandon, dead_letter)]
            NoSuchCustomer { id: u64 },
            #[idem(keep)]
            Refused,
            MailServerBusy,
            #[idem(release)]
            Idempotency(idem::Error),
        }
    });
    let wrapper = error_policy::derive(quote! {
        #[idem(crate = "crate::idem", inner, dispose)]
        struct Traced<E> {
            error: E,
        }
    });
    assert_expands(
        &quote!(#policy #wrapper),
        &expect_file!["../snapshots/dispositions.rs"],
    );
}
