async fn create_order(
    tx: &mut PgTransaction<'_>,
    req: &CreateOrder,
) -> Result<Receipt, OrderError> {
    static __IDEM_SITE: ::idem::__private::Site = ::idem::__private::Site::new(
        ::core::file!(),
        ::core::line!(),
        ::core::column!(),
    );
    let __idem_operation = ::idem::__private::operation(
            &__IDEM_SITE,
            ::idem::__private::Name::of_function(
                ::core::concat!(::core::module_path!(), "::", "create_order"),
                || ::core::any::type_name_of_val(&|| ()),
            ),
        )
        .key(&req.order_id)
        .fingerprint(&req);
    let __idem_witness = ::idem::__private::outcome_of::<
        Result<Receipt, OrderError>,
        _,
    >();
    let __idem_policy = {
        #[allow(unused_imports)]
        use ::idem::__private::{
            ConditionalPolicy as _, NoPolicy as _, OtherParameter as _,
        };
        (&__idem_witness).errors_by_default()
    };
    let __idem_policy = {
        #[allow(unused_imports)]
        use ::idem::__private::Opaque as _;
        __idem_policy.looking_inside()
    };
    let __idem_body = async move |tx: &mut PgTransaction<'_>| {
        if let ::core::option::Option::Some(__idem_return) = ::core::option::Option::None::<
            Result<Receipt, OrderError>,
        > {
            return __idem_return;
        }
        let _ = &req;
        let _ = &tx;
        #[allow(unused_braces)] { insert(tx, req).await }
    };
    return ::idem::__private::run_in(
            __idem_operation,
            __idem_witness,
            __idem_policy,
            tx,
            __idem_body,
        )
        .await;
}
