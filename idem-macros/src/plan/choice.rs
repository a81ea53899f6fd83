//! Options that are one of a few words.

use proc_macro2::Ident;

use super::Argument;

/// An option that is one of a few words, as a variant of an enum.
pub(super) struct Choice {
    of: &'static str,
    variants: &'static [(&'static str, &'static str)],
}

pub(super) const IN_FLIGHT: Choice = Choice {
    of: "InFlight",
    variants: &[("wait", "Wait"), ("reject", "Reject")],
};
pub(super) const DUPLICATE: Choice = Choice {
    of: "Duplicate",
    variants: &[("replay", "Replay"), ("reject", "Reject")],
};
// With `reconcile`, the next attempt runs. Its body begins with the question about the last one.
pub(super) const ABANDONED: Choice = Choice {
    of: "Abandoned",
    variants: &[
        ("rerun", "Rerun"),
        ("reject", "Reject"),
        ("reconcile", "Rerun"),
    ],
};
pub(super) const STORE_FAILURE: Choice = Choice {
    of: "StoreFailure",
    variants: &[("reject", "Reject"), ("run", "Run")],
};
pub(super) const MISSING_KEY: Choice = Choice {
    of: "MissingKey",
    variants: &[("reject", "Reject"), ("run", "Run")],
};

impl Choice {
    pub(super) fn words(&self) -> Vec<&'static str> {
        self.variants.iter().map(|(word, _)| *word).collect()
    }

    pub(super) fn variant(&self, word: &Ident) -> Option<Argument> {
        let (_, variant) = self.variants.iter().find(|(name, _)| word == name)?;
        Some(Argument::Variant(self.of, Ident::new(variant, word.span())))
    }
}
