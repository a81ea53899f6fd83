//! Exclusive references in bodies that are retried: the tries borrow them one after the other.

use std::sync::{Mutex, PoisonError};

/// An exclusive reference that the tries of a body borrow one after the other.
#[derive(Debug)]
pub struct Lent<'a, T: ?Sized>(Mutex<Option<&'a mut T>>);

/// The reference while one try borrows it. Dropping the try's body returns it.
#[derive(Debug)]
pub struct Taken<'l, 'a, T: ?Sized> {
    lent: &'l Lent<'a, T>,
    value: Option<&'a mut T>,
}

impl<'a, T: ?Sized> Lent<'a, T> {
    /// Wraps a reference, so that tries can borrow it.
    pub fn new(value: &'a mut T) -> Self {
        Self(Mutex::new(Some(value)))
    }

    /// Lends the reference to a try.
    pub fn take(&self) -> Taken<'_, 'a, T> {
        Taken {
            lent: self,
            value: self.0.lock().unwrap_or_else(PoisonError::into_inner).take(),
        }
    }
}

impl<T: ?Sized> Taken<'_, '_, T> {
    /// Returns the reference. `None` if an earlier try still has it; a try that has ended has not.
    pub fn get(&mut self) -> Option<&mut T> {
        self.value.as_deref_mut()
    }
}

impl<T: ?Sized> Drop for Taken<'_, '_, T> {
    fn drop(&mut self) {
        if let Some(value) = self.value.take() {
            *self.lent.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        }
    }
}
