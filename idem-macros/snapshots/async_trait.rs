fn charge<'life0, 'life1, 'async_trait>(
    &'life0 self,
    __arg1: Json<Req>,
    gateway: &'life1 Gateway,
) -> Pin<Box<dyn Future<Output = R> + Send + 'async_trait>> {
    Box::pin(async move {
        if let ::core::option::Option::Some(__ret) = ::core::option::Option::None::<R> {
            #[allow(unreachable_code)] return __ret;
        }
        let __self = self;
        let Json(req) = __arg1;
        let __ret: R = {
            static __IDEM_SITE: ::idem::__private::Site = ::idem::__private::Site::new(
                ::core::file!(),
                ::core::line!(),
                ::core::column!(),
            );
            let __idem_operation = ::idem::__private::operation(
                    &__IDEM_SITE,
                    ::idem::__private::Name::written(
                        "orders.charge",
                        || ::core::any::type_name_of_val(&|| ()),
                    ),
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
            let __idem_policy = {
                #[allow(unused_imports)]
                use ::idem::__private::Opaque as _;
                __idem_policy.looking_inside()
            };
            let __idem_body = || {
                #[allow(clippy::shadow_reuse)]
                let __self = ::idem::__private::again(&__self);
                #[allow(clippy::shadow_reuse)]
                let req = ::idem::__private::again(&req);
                #[allow(clippy::shadow_reuse)]
                let gateway = ::idem::__private::again(&gateway);
                async move {
                    if let ::core::option::Option::Some(__idem_return) = ::core::option::Option::None::<
                        R,
                    > {
                        return __idem_return;
                    }
                    #[allow(unused_braces)] { gateway.charge(__self, req) }
                }
            };
            let __idem_answer = ::idem::__private::run_again(
                    __idem_operation,
                    __idem_witness,
                    __idem_policy,
                    __idem_body,
                )
                .await;
            __idem_answer
        };
        #[allow(unreachable_code)] __ret
    })
}
