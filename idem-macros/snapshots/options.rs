async fn charge(self: Arc<Self>, req: Req) -> R {
    static __IDEM_SITE: crate::idem::__private::Site = crate::idem::__private::Site::new(
        ::core::file!(),
        ::core::line!(),
        ::core::column!(),
    );
    if false {
        use crate::idem::__private::PerhapsMissing as _;
        let __idem_key = crate::idem::__private::KeyOf(
            &(&(req.a + 1), &(&TENANT, &req.b)),
        );
        let _ = __idem_key.can_be_missing();
    }
    let __idem_operation = crate::idem::__private::operation_of(
            &__IDEM_SITE,
            crate::idem::__private::Name::written(
                "orders.charge",
                || ::core::any::type_name_of_val(&|| ()),
            ),
            &self.idempotency,
        )
        .key(
            &(
                crate::idem::__private::part(&(req.a + 1)),
                crate::idem::__private::part(
                    &(
                        crate::idem::__private::part(&TENANT),
                        crate::idem::__private::part(&req.b),
                    ),
                ),
            ),
        )
        .fingerprint(&req)
        .times()
        .wait(req.time)
        .into_operation()
        .abandoned(crate::idem::policy::Abandoned::Rerun)
        .asks_first()
        .duplicate(crate::idem::policy::Duplicate::Reject)
        .store_failure(crate::idem::policy::StoreFailure::Run)
        .missing_key(crate::idem::policy::MissingKey::Run)
        .max_attempts(3)
        .observe()
        .outcome_version(2)
        .upgrade(1, crate::idem::__private::upgrades::<R, _, _>(from_v1));
    let __idem_witness = crate::idem::__private::outcome_of::<R, _>();
    let __idem_policy = __idem_witness.errors_by_policy();
    let __idem_policy = {
        #[allow(unused_imports)]
        use crate::idem::__private::Opaque as _;
        __idem_policy.looking_inside()
    };
    let __idem_body = move || {
        #[allow(clippy::shadow_reuse)]
        let req = crate::idem::__private::again(&req);
        #[allow(clippy::shadow_reuse)]
        let __self = crate::idem::__private::again(&self);
        async move {
            if let ::core::option::Option::Some(__idem_return) = ::core::option::Option::None::<
                R,
            > {
                return __idem_return;
            }
            if crate::idem::__private::must_reconcile() {
                if let ::core::option::Option::Some(__idem_settled) = crate::idem::__private::reconciled(
                    crate::idem::__private::question(__self.find(&req)).await,
                ) {
                    return __idem_settled;
                }
            }
            #[allow(unused_braces)] { __self.charge(req).await }
        }
    };
    return crate::idem::__private::run_detached_again(
            __idem_operation,
            __idem_witness,
            __idem_policy,
            __idem_body,
        )
        .await;
}
