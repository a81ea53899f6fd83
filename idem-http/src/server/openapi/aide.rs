//! Documents of aide.

use aide::OperationInput;
use aide::generate::GenContext;
use aide::openapi::{
    Header, OpenApi, Operation, Parameter, PathItem, ReferenceOr, Response, StatusCode,
};
use http::Method;

use super::{
    FERN, Guard, HEADER, REPLAYED, append, complete, operations, parameter, sealed::ApiDocument,
};
use crate::key::IdempotencyKey;

/// The header of a handler with the extractor.
impl OperationInput for IdempotencyKey {
    fn operation_input(_: &mut GenContext, operation: &mut Operation) {
        let header = parameter::<Parameter>(&HEADER, true).map(ReferenceOr::Item);
        operation.parameters.extend(header);
    }
}

impl ApiDocument for OpenApi {
    fn describe(&mut self, guard: &Guard) {
        let paths = self
            .paths
            .iter_mut()
            .flat_map(|paths| paths.paths.values_mut());
        for path in paths.filter_map(ReferenceOr::as_item_mut) {
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
            let ours = header.parameter_data_ref();
            let mut theirs = self
                .parameters
                .iter_mut()
                .filter_map(ReferenceOr::as_item_mut);
            let same = theirs.find(|theirs| match theirs {
                Parameter::Header { parameter_data, .. } => {
                    parameter_data.name.eq_ignore_ascii_case(&ours.name)
                }
                _ => false,
            });
            match same {
                Some(theirs) => theirs.parameter_data_mut().required |= ours.required,
                None => self.parameters.push(ReferenceOr::Item(header)),
            }
        }
        let responses = self.responses.get_or_insert_default();
        let by_status = responses.responses.iter_mut();
        let default = responses
            .default
            .iter_mut()
            .map(|response| ("default".to_owned(), response));
        let theirs = by_status
            .map(|(status, response)| (status.to_string(), response))
            .chain(default);
        for (status, response) in theirs {
            if let Some(theirs) = response.as_item_mut()
                && let Some(mark) = guard.mark::<Header>(&status, &theirs.description)
            {
                theirs
                    .headers
                    .entry(REPLAYED.to_owned())
                    .or_insert(ReferenceOr::Item(mark));
            }
        }
        for (status, ours) in guard.responses::<Response>() {
            let response = responses.responses.entry(StatusCode::Code(status.as_u16()));
            if let Some(theirs) = response
                .or_insert_with(|| ReferenceOr::Item(Response::default()))
                .as_item_mut()
            {
                complete!(theirs, ours);
            }
        }
        self.extensions.insert(FERN.to_owned(), true.into());
    }
}
