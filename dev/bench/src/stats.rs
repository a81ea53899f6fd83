//! Quantiles, exactly: all that was measured is kept and sorted.

/// The value below which a share of them lies; NaN of none.
pub(crate) fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    of_sorted(&sorted, share)
}

/// The same of values in order.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss
)]
pub(crate) fn of_sorted(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1) as f64;
    sorted
        .get((last * share).round() as usize)
        .copied()
        .unwrap_or(f64::NAN)
}

/// The one in the middle, or the mean of the two there.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    let last = sorted.len().saturating_sub(1);
    match (sorted.get(last / 2), sorted.get(half)) {
        (Some(one), Some(other)) => f64::midpoint(*one, *other),
        _ => f64::NAN,
    }
}

/// The least and the greatest.
pub(crate) fn range(values: &[f64]) -> (f64, f64) {
    (quantile(values, 0.0), quantile(values, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let values = [5.0, 1.0, 4.0, 2.0, 3.0];
        assert_eq!((median(&values), range(&values)), (3.0, (1.0, 5.0)));
        assert!((median(&[1.0, 2.0]) - 1.5).abs() < f64::EPSILON && median(&[]).is_nan());
    }
}
