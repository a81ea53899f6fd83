const _: () = {
    pub enum __IdemKeeps {}
    #[automatically_derived]
    impl ::idem::bounds::Frequency for __IdemKeeps {
        type Or<Other: ::idem::bounds::Frequency> = ::idem::bounds::Sometimes;
    }
    #[automatically_derived]
    impl ::idem::__private::KeepsErrors<HandleError> for __IdemKeeps {
        fn error_codec() -> ::core::option::Option<
            ::idem::__private::ErrorCodec<HandleError>,
        > {
            ::core::option::Option::Some(
                ::idem::__private::ErrorCodec::<HandleError>::of_type(),
            )
        }
    }
    #[automatically_derived]
    impl ::idem::ErrorPolicy for HandleError {
        type Keeps = __IdemKeeps;
        type Retries = ::idem::bounds::Never;
        fn action(&self) -> ::idem::ErrorAction {
            match self {
                Self::Unreadable { .. } => ::idem::ErrorAction::Unlisted,
                Self::NoSuchCustomer { .. } => ::idem::ErrorAction::Abandon,
                Self::Refused { .. } => ::idem::ErrorAction::Keep,
                Self::MailServerBusy { .. } => ::idem::ErrorAction::Unlisted,
                Self::Idempotency { .. } => ::idem::ErrorAction::Release,
            }
        }
    }
};
#[automatically_derived]
impl ::idem::Dispose for HandleError {
    fn disposition(&self) -> ::idem::Disposition {
        match self {
            Self::Unreadable { .. } => ::idem::Disposition::dead_letter("unreadable"),
            Self::NoSuchCustomer { .. } => {
                ::idem::Disposition::dead_letter("no_such_customer")
            }
            Self::Refused { .. } => ::idem::Disposition::dead_letter("refused"),
            Self::MailServerBusy { .. } => ::idem::__private::comes_again(),
            Self::Idempotency { 0: inner } => {
                #[allow(unused_imports)]
                use ::idem::__private::{ConditionalDisposition as _, NoDisposition as _};
                (&::idem::__private::Inside(inner)).disposition()
            }
        }
    }
}
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
impl<E> crate::idem::__private::HasDisposition for Traced<E> {}
#[automatically_derived]
impl<E> crate::idem::Dispose for Traced<E>
where
    E: crate::idem::Dispose,
{
    fn disposition(&self) -> crate::idem::Disposition {
        match self {
            Self { error: inner } => {
                #[allow(unused_imports)]
                use crate::idem::__private::{
                    ConditionalDisposition as _, DispositionByPolicy as _,
                };
                (&crate::idem::__private::Inside(inner)).disposition_by_policy("traced")
            }
        }
    }
}
