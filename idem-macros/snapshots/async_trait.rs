fn charge<'life0, 'async_trait>(
    &'life0 self,
    __arg1: Json<Req>,
) -> Pin<Box<dyn Future<Output = R> + Send + 'async_trait>> {
    Box::pin(async move {
        let __self = self;
        let Json(req) = __arg1;
        let __ret: R = {
            static __IDEM_SITE: ::idem::__private::Site = ::idem::__private::Site::named(
                "orders.charge",
            );
            let __idem_operation = ::idem::__private::operation(
                    &__IDEM_SITE,
                    ::core::option::Option::None,
                )
                .key(
                    &(
                        ::idem::__private::part(&__self.id),
                        ::idem::__private::part(&self::id(&req)),
                    ),
                );
            let __idem_witness = ::idem::__private::outcome_of::<R, _>();
            #[deny(unreachable_patterns)]
            let __idem_policy = __idem_witness
                .errors(|__idem_error| match __idem_error {
                    E::A if __self.again() => {
                        ::idem::ErrorAction::Retry(::idem::Retry::new(1))
                    }
                });
            ::idem::__private::run_again(
                    __idem_operation,
                    __idem_witness,
                    __idem_policy,
                    move || {
                        let __self = ::idem::__private::again(&__self);
                        let req = ::idem::__private::again(&req);
                        async move {
                            if let ::core::option::Option::Some(__idem_return) = ::core::option::Option::None::<
                                R,
                            > {
                                return __idem_return;
                            }
                            #[allow(unused_braces)] { __self.charge(req) }
                        }
                    },
                )
                .await
        };
        __ret
    })
}
