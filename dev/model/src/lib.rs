//! A model of the record's life, explored exhaustively: the promises are its properties.

mod bounds;
mod caller;
mod checked;
mod life;
mod mutant;
mod operator;
mod promise;
mod properties;
mod report;
mod slot;
mod state;
mod store;
mod ticks;

pub use crate::bounds::{Bounds, Network};
pub use crate::caller::{Caller, Ended, Id, Phase, Reply, Request, Stray, Wire};
pub use crate::life::{Act, Fate, Life, Poll};
pub use crate::mutant::Mutant;
pub use crate::operator::Decision;
pub use crate::promise::{Onlooker, Promise};
pub use crate::report::{Found, explore};
pub use crate::slot::{Entry, Over, Slot, TakenOver};
pub use crate::state::{CALLERS, State};
pub use crate::ticks::FOREVER;
