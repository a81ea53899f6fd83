//! What is decided for each operation: its settings, and the actions on its errors.

pub(crate) mod errors;
pub(crate) mod settings;
pub(crate) mod step_settings;
