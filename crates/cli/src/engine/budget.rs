//! The daemon's budget of memory (`copyhold::Shares`), in terms of the mount's options.

use copyhold::{Shares, SharesError};

use crate::failure::Failure;
use crate::size::Size;

const MIB: u64 = 1 << 20;

/// In terms of the options.
pub(super) fn refusal(error: SharesError) -> Failure {
    Failure::usage(match error {
        SharesError::TooLittle { budget, least } => format!(
            "memory={} is too small: a pool of this size needs memory={}M or more",
            Size(budget),
            least.div_ceil(MIB),
        ),
        SharesError::TooManyEdits { delta, budget, most } => format!(
            "delta={} is too large for memory={}; delta={}M fits",
            Size(delta),
            Size(budget),
            most / MIB,
        ),
    })
}

/// A warning to the user about a default budget.
pub(super) fn warning(shares: &Shares) -> Option<String> {
    let (group, least) = (Size(shares.tight_group?), shares.budget.div_ceil(MIB));
    Some(format!(
        "the control group limits memory to {group}, and the daemon may use {least}M of it, the \
         least for a pool of this size (`-o memory=` accepts no less); raise the limit of the \
         group to {}M, or the kernel may kill the daemon",
        2 * least
    ))
}

#[cfg(test)]
mod tests {
    use copyhold::PoolSize;
    use copyhold_serve::budget::machine;

    use super::*;

    const POOL: PoolSize = PoolSize { blocks: 100 << 18, metaslab_blocks: 1 << 18 };

    fn shares(
        budget: Option<Size>,
        delta: Option<Size>,
        pool: PoolSize,
    ) -> Result<Shares, Failure> {
        let bytes = |size: Option<Size>| size.map(|size| size.0);
        Shares::of(bytes(budget), bytes(delta), pool, machine()).map_err(refusal)
    }

    /// The number behind `what` in a message, the second time that it is there.
    fn told(message: &str, what: &str) -> u64 {
        message.split(what).nth(2).unwrap().split('M').next().unwrap().parse().unwrap()
    }

    #[test]
    fn a_refusal_names_an_option_that_fits() {
        let of = |budget, delta: Option<u64>| shares(Some(Size(budget)), delta.map(Size), POOL);
        let little = of(32 * MIB, None).unwrap_err().to_string();
        let least = told(&little, "memory=");
        assert!(of(least * MIB, None).is_ok() && of((least - 1) * MIB, None).is_err(), "{little}");
        let much = of(512 * MIB, Some(400 * MIB)).unwrap_err().to_string();
        let most = told(&much, "delta=");
        assert!(of(512 * MIB, Some(most * MIB)).is_ok(), "{much}");
        assert!(of(512 * MIB, Some((most + 1) * MIB)).is_err(), "{much}");
    }

    #[test]
    fn a_tight_group_is_a_warning_in_one_line() {
        let usual = shares(Some(Size(512 * MIB)), None, POOL).unwrap();
        assert_eq!(warning(&usual), None);
        let tight = Shares { budget: 95 * MIB, tight_group: Some(64 * MIB), ..usual };
        let warning = warning(&tight).unwrap();
        assert!(warning.contains("64.0 MiB") && warning.contains("95M"), "{warning}");
        assert!(warning.contains("-o memory=") && !warning.contains('\n'), "{warning}");
    }
}
