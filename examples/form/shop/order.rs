//! Orders: as typed, as wanted, as placed.

use serde::{Deserialize, Serialize};

/// The form as it came, which may be anything.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct OrderForm {
    pub(crate) token: String,
    pub(crate) tea: String,
    pub(crate) tins: String,
    pub(crate) name: String,
}

/// The form's fields once they make sense. They are the fingerprint: the same token with others is
/// another order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wanted {
    pub(crate) tea: Tea,
    pub(crate) tins: u32,
    pub(crate) name: String,
}

/// An order that was placed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) number: usize,
    pub(crate) wanted: Wanted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Tea {
    Sencha,
    Assam,
    SilverNeedle,
}

/// What is wrong in a field.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mistakes {
    pub(crate) tea: Option<&'static str>,
    pub(crate) tins: Option<&'static str>,
    pub(crate) name: Option<&'static str>,
}

impl OrderForm {
    /// The values of an untouched form.
    pub(crate) fn empty() -> Self {
        Self {
            tins: "1".to_owned(),
            ..Self::default()
        }
    }

    pub(crate) fn check(&self) -> Result<Wanted, Mistakes> {
        let tea = Tea::ALL.into_iter().find(|tea| tea.id() == self.tea);
        let tins = self
            .tins
            .trim()
            .parse()
            .ok()
            .filter(|tins| (1..=9).contains(tins));
        let name = self.name.trim();
        let name_fits = (1..=60).contains(&name.chars().count());
        match (tea, tins) {
            (Some(tea), Some(tins)) if name_fits => Ok(Wanted {
                tea,
                tins,
                name: name.to_owned(),
            }),
            _ => Err(Mistakes {
                tea: tea.is_none().then_some("Choose a tea."),
                tins: tins.is_none().then_some("Order 1 to 9 tins."),
                name: (!name_fits).then_some("Tell us your name, in at most 60 letters."),
            }),
        }
    }
}

impl Tea {
    pub(crate) const ALL: [Self; 3] = [Self::Sencha, Self::Assam, Self::SilverNeedle];

    /// As it stands in the form.
    pub(crate) fn id(self) -> &'static str {
        match self {
            Self::Sencha => "sencha",
            Self::Assam => "assam",
            Self::SilverNeedle => "silver-needle",
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sencha => "Sencha",
            Self::Assam => "Assam",
            Self::SilverNeedle => "Silver Needle",
        }
    }

    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::Sencha => "Green, from Uji. Fresh and a little sweet.",
            Self::Assam => "Black and strong. Takes milk well.",
            Self::SilverNeedle => "White, and rare: often out of stock.",
        }
    }

    pub(crate) fn cents(self) -> u32 {
        match self {
            Self::Sencha => 980,
            Self::Assam => 750,
            Self::SilverNeedle => 2400,
        }
    }
}
