const _: () = {
    pub enum __IdemKeeps {}
    #[automatically_derived]
    impl ::idem::bounds::Frequency for __IdemKeeps {
        type Or<Other: ::idem::bounds::Frequency> = ::idem::bounds::Sometimes;
    }
    #[automatically_derived]
    impl ::idem::__private::KeepsErrors<OrderError> for __IdemKeeps {
        fn error_codec() -> ::core::option::Option<
            ::idem::__private::ErrorCodec<OrderError>,
        > {
            ::core::option::Option::Some(
                ::idem::__private::ErrorCodec::<OrderError>::of_type(),
            )
        }
    }
    #[automatically_derived]
    impl ::idem::ErrorPolicy for OrderError {
        type Keeps = __IdemKeeps;
        type Retries = ::idem::bounds::Sometimes;
        fn action(&self) -> ::idem::ErrorAction {
            match self {
                Self::Declined { .. } => {
                    ::idem::ErrorAction::KeepFor(
                        ::core::time::Duration::new(3600u64, 0u32),
                    )
                }
                Self::Gateway { .. } => {
                    ::idem::ErrorAction::Retry(
                        ::idem::Retry::new(3)
                            .backoff(::core::time::Duration::new(0u64, 100000000u32))
                            .max_backoff(LONGEST)
                            .then_abandon(),
                    )
                }
                Self::Stock { 0: inner } => {
                    <StockError as ::idem::ErrorPolicy>::action(inner)
                }
                Self::Other { .. } => ::idem::ErrorAction::Unlisted,
            }
        }
    }
};
const _: () = {
    #[automatically_derived]
    impl<E> crate::idem::bounds::HasErrorPolicy for Traced<E> {}
    #[automatically_derived]
    impl<E> crate::idem::ErrorPolicy for Traced<E>
    where
        E: crate::idem::ErrorPolicy,
    {
        type Keeps = <<E as crate::idem::ErrorPolicy>::Keeps as crate::idem::bounds::Frequency>::Or<
            crate::idem::bounds::Never,
        >;
        type Retries = <<E as crate::idem::ErrorPolicy>::Retries as crate::idem::bounds::Frequency>::Or<
            crate::idem::bounds::Never,
        >;
        fn action(&self) -> crate::idem::ErrorAction {
            match self {
                Self { error: inner } => <E as crate::idem::ErrorPolicy>::action(inner),
            }
        }
    }
};
#[automatically_derived]
impl<T: crate::idem::KeyPart> crate::idem::KeyPart for Payee<T> {
    fn write_to(&self, key: &mut crate::idem::KeyWriter<'_>) {
        match self {
            Self::Customer { 0: field_0 } => {
                key.group(|key| {
                    key.text("Customer");
                    <T as crate::idem::KeyPart>::write_to(field_0, key);
                });
            }
            Self::Merchant { shop: field_0, till: field_1 } => {
                key.group(|key| {
                    key.text("Merchant");
                    <ShopId as crate::idem::KeyPart>::write_to(field_0, key);
                    <u32 as crate::idem::KeyPart>::write_to(field_1, key);
                });
            }
            Self::House {} => {
                key.text("House");
            }
        }
    }
}
#[automatically_derived]
impl<T> crate::idem::__private::NeverMissing for Payee<T>
where
    for<'__idem> T: crate::idem::__private::NeverMissing,
    for<'__idem> ShopId: crate::idem::__private::NeverMissing,
    for<'__idem> u32: crate::idem::__private::NeverMissing,
{}
