//! State that follows a task: the runtime of a scope, the call whose body runs, watches.

pub(crate) mod carried;
pub(crate) mod current;
pub(crate) mod held_locks;
pub(crate) mod inherited;
pub(crate) mod scope;
pub(crate) mod steps;
pub(crate) mod transaction_recorder;
pub(crate) mod unguarded;
pub(crate) mod waiting;
pub(crate) mod watch;
