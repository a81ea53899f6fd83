//! State that follows a task: the runtime of a scope, the call whose body runs, watches.

pub(crate) mod carried;
pub(crate) mod companion;
pub(crate) mod current;
pub(crate) mod held_keys;
pub(crate) mod inherited;
pub(crate) mod outcome_writer;
pub(crate) mod request;
pub(crate) mod scope;
pub(crate) mod waiting;
pub(crate) mod watch;
