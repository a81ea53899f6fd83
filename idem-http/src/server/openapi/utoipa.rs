//! Documents of utoipa.

use http::Method;
use utoipa::IntoParams;
use utoipa::openapi::path::{Operation, Parameter, ParameterIn, PathItem};
use utoipa::openapi::{Header, OpenApi, RefOr, Required, Response};

use super::{
    FERN, Guard, HEADER, REPLAYED, append, complete, operations, parameter, sealed::ApiDocument,
};
use crate::key::IdempotencyKey;

/// The header of a handler with the extractor: `#[utoipa::path(params(IdempotencyKey))]`.
impl IntoParams for IdempotencyKey {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        parameter::<Parameter>(&HEADER, true).into_iter().collect()
    }
}

impl ApiDocument for OpenApi {
    fn describe(&mut self, guard: &Guard) {
        for path in self.paths.paths.values_mut() {
            path.describe(guard);
        }
    }
}

impl ApiDocument for PathItem {
    fn describe(&mut self, guard: &Guard) {
        for (method, operation) in operations!(self) {
            if let Some(operation) = operation.as_mut().filter(|_| guard.guards(&method)) {
                operation.describe(guard);
            }
        }
    }
}

impl ApiDocument for Operation {
    fn describe(&mut self, guard: &Guard) {
        if let Some(header) = guard.parameter::<Parameter>() {
            let parameters = self.parameters.get_or_insert_default();
            let is_same = |theirs: &Parameter| {
                theirs.parameter_in == ParameterIn::Header
                    && theirs.name.eq_ignore_ascii_case(&header.name)
            };
            let same = parameters.iter_mut().find_map(|parameter| match parameter {
                RefOr::T(theirs) if is_same(theirs) => Some(theirs),
                _ => None,
            });
            match same {
                Some(theirs) if header.required == Required::True => {
                    theirs.required = Required::True;
                }
                Some(_) => {}
                None => parameters.push(RefOr::T(header)),
            }
        }
        let responses = &mut self.responses.responses;
        for (status, response) in responses.iter_mut() {
            if let RefOr::T(theirs) = response
                && let Some(mark) = guard.mark::<Header>(status, &theirs.description)
            {
                theirs
                    .headers
                    .entry(REPLAYED.to_owned())
                    .or_insert(RefOr::T(mark));
            }
        }
        for (status, ours) in guard.responses::<Response>() {
            let response = responses
                .entry(status.as_str().to_owned())
                .or_insert_with(|| RefOr::T(Response::default()));
            if let RefOr::T(theirs) = response {
                complete!(theirs, ours);
            }
        }
        self.extensions
            .get_or_insert_default()
            .insert(FERN.to_owned(), true.into());
    }
}
