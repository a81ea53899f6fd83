/// Creates an order.
pub async fn create_order(req: CreateOrder) -> Result<Receipt, OrderError> {
    static __IDEM_SITE: ::idem::__private::Site = ::idem::__private::Site::new(
        ::core::file!(),
        ::core::line!(),
        ::core::column!(),
    );
    let __idem_operation = match ::idem::__private::operation_unless_disabled(
        &__IDEM_SITE,
        ::idem::__private::Name::of_function(
            ::core::concat!(::core::module_path!(), "::", "create_order"),
            || ::core::any::type_name_of_val(&|| ()),
        ),
    ) {
        ::core::option::Option::Some(__idem_operation) => {
            ::core::option::Option::Some(
                __idem_operation
                    .key(&req.order_id)
                    .ttl(::core::time::Duration::new(300u64, 0u32)),
            )
        }
        ::core::option::Option::None => ::core::option::Option::None,
    };
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
    let __idem_call = ::idem::__private::prepare(__idem_operation);
    let mut __idem_types = ::core::marker::PhantomData;
    let __idem_body = move || async move {
        if let ::core::option::Option::Some(__idem_return) = ::core::option::Option::None::<
            Result<Receipt, OrderError>,
        > {
            return __idem_return;
        }
        let _ = &req;
        #[allow(unused_braces)] { charge(&req).await }
    };
    return ::idem::__private::run(
            ::core::option::Option::as_ref(&__idem_call),
            __idem_witness,
            __idem_policy,
            __idem_body,
            &mut __idem_types,
        )
        .await;
}
