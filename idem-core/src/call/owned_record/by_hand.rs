//! Steps at the store whose failure is the caller's.

use super::{OwnedState, Tried};
use crate::error::Error;
use crate::record::Ownership;

impl OwnedState {
    /// Tries once what is left to do.
    pub(super) async fn try_by_hand(&mut self) -> Result<(), Error> {
        match self.try_step().await {
            Tried::Over(ownership) => {
                self.finish(ownership);
                match ownership {
                    Ownership::Held => Ok(()),
                    Ownership::Lost => Err(self.enrolled.term.lost_error()),
                }
            }
            Tried::Failed(error) => {
                self.delayed(&error);
                let term = &self.enrolled.term;
                Err(Error::Store {
                    operation: term.id.operation().into(),
                    key: term.id.digest(),
                    source: error,
                })
            }
            Tried::Hopeless(error) => {
                self.give_up(&error);
                let (operation, key) = (
                    self.enrolled.term.id.operation().into(),
                    self.enrolled.term.id.digest(),
                );
                Err(Error::Codec {
                    operation,
                    key,
                    reason: error.to_string().into(),
                    is_message: false,
                })
            }
        }
    }
}
