//! The bound of a cache, divided among its parts.
//!
//! FITPARTS-F1  The bounds of all parts are together at most the larger one of the bound before and
//!              the new one, at every moment; and in the end at most the new one, unless protected
//!              objects take more.

/// A part whose objects were in use gives some of them after so many requests.
const ROUNDS: u32 = 3;

/// Divides `bytes_max` among so many parts. `bound`: of a part now; `fit` gives a part a bound, and
/// returns the one that it keeps. A part that keeps more than an even one takes room from the
/// others. Returns the sum.
pub fn fit_parts(
    parts: usize,
    bytes_max: usize,
    bound: impl Fn(usize) -> usize,
    fit: impl Fn(usize, usize) -> usize,
) -> usize {
    let even = bytes_max / parts.max(1);
    let lower = |part: usize| match bound(part) {
        now if now > even => fit(part, even),
        now => now,
    };
    let mut kept: Vec<usize> = (0..parts).map(lower).collect();
    let over = |kept: &[usize]| kept.iter().sum::<usize>().saturating_sub(bytes_max);
    let mut in_vain = 0;
    while over(&kept) > 0 && in_vain < ROUNDS {
        let before = over(&kept);
        for part in 0..parts {
            let wanted = over(&kept).div_ceil(parts - part);
            if wanted > 0 {
                kept[part] = fit(part, kept[part].saturating_sub(wanted));
            }
        }
        in_vain = if over(&kept) < before { 0 } else { in_vain + 1 };
    }
    for part in 0..parts {
        let spare = bytes_max.saturating_sub(kept.iter().sum());
        let wanted = even.min(kept[part] + spare);
        if wanted > kept[part] {
            kept[part] = fit(part, wanted);
        }
    }
    kept.iter().sum()
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    struct Part {
        bound: usize,
        bytes: usize,
        protected: usize,
        /// Requests before the part gives all that it can.
        in_use: u32,
    }

    fn part() -> impl Strategy<Value = Part> {
        (0..1000_usize, 0..=8_usize, 0..=8_usize, 0..=ROUNDS).prop_map(
            |(bound, bytes, of, in_use)| {
                let bytes = bound * bytes / 8;
                Part { bound, bytes, protected: bytes * of / 8, in_use }
            },
        )
    }

    proptest! {
        #[test]
        fn the_parts_never_have_more_than_their_bound(
            parts in prop::collection::vec(part(), 1..9), wanted in 0..6000_usize,
        ) {
            let before: usize = parts.iter().map(|part| part.bound).sum();
            let protected: usize = parts.iter().map(|part| part.protected).sum();
            let (count, parts) = (parts.len(), RefCell::new(parts));
            let most = Cell::new(0);
            let fit = |at: usize, bound: usize| {
                let mut parts = parts.borrow_mut();
                let part = &mut parts[at];
                let least = match part.in_use.checked_sub(1) {
                    Some(left) => {
                        part.in_use = left;
                        part.bytes.div_ceil(2)
                    }
                    None => 0,
                };
                part.bytes = part.bytes.min(bound.max(least).max(part.protected));
                part.bound = bound.max(part.bytes);
                let kept = part.bound;
                most.set(most.get().max(parts.iter().map(|part| part.bound).sum()));
                kept
            };
            let sum = fit_parts(count, wanted, |at| parts.borrow()[at].bound, fit);
            let now: usize = parts.borrow().iter().map(|part| part.bound).sum();
            prop_assert_eq!(sum, now);
            prop_assert!(most.get() <= before.max(wanted), "FITPARTS-F1");
            prop_assert!(sum <= wanted.max(protected), "FITPARTS-F1: {} of {}", sum, wanted);
        }
    }
}
