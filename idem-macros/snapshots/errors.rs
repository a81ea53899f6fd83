async fn charge(mut req: Req, gateway: &Gateway, unused: u8) -> Result<u64, OrderError> {
    static __IDEM_SITE: ::idem::__private::Site = ::idem::__private::Site::new(
        ::core::file!(),
        ::core::line!(),
        ::core::column!(),
    );
    let __idem_operation = ::idem::__private::operation(
            &__IDEM_SITE,
            ::idem::__private::Name::of_function(
                ::core::concat!(::core::module_path!(), "::", "charge"),
                || ::core::any::type_name_of_val(&|| ()),
            ),
        )
        .key(&req.id);
    let __idem_witness = ::idem::__private::outcome_of::<Result<u64, OrderError>, _>();
    let _ = &mut req;
    let __idem_value_0: ::core::time::Duration = req.keep;
    #[deny(unreachable_patterns)]
    let __idem_policy = __idem_witness
        .errors(|__idem_error| match __idem_error {
            OrderError::Declined { .. } => ::idem::ErrorAction::Keep,
            OrderError::RateLimited(after) if *after < MAX => {
                ::idem::ErrorAction::Retry(
                    ::idem::Retry::new(3).backoff(*after).then_keep_for(__idem_value_0),
                )
            }
            OrderError::Down | OrderError::Gateway(Gateway::Timeout) => {
                ::idem::ErrorAction::Retry(
                    ::idem::Retry::new(3)
                        .backoff(::core::time::Duration::new(0u64, 100000000u32)),
                )
            }
            OrderError::TimedOut => ::idem::ErrorAction::Abandon,
            _ => ::idem::ErrorAction::Release,
        });
    let __idem_policy = __idem_policy.keeping();
    let __idem_policy = {
        #[allow(unused_imports)]
        use ::idem::__private::Opaque as _;
        __idem_policy.looking_inside()
    };
    let __idem_body = move || {
        #[allow(clippy::shadow_reuse)]
        let mut req = ::idem::__private::again(&req);
        #[allow(clippy::shadow_reuse)]
        let gateway = ::idem::__private::again(&gateway);
        async move {
            if let ::core::option::Option::Some(__idem_return) = ::core::option::Option::None::<
                Result<u64, OrderError>,
            > {
                return __idem_return;
            }
            #[allow(unused_braces)] { gateway.charge(req).await }
        }
    };
    return ::idem::__private::run_again(
            __idem_operation,
            __idem_witness,
            __idem_policy,
            __idem_body,
        )
        .await;
}
