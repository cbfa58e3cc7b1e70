//! Moments as programs and people read them: RFC 3339, in UTC, whole seconds.

use copyhold_types::Timestamp;

const DAY_SECS: i64 = 86_400;
/// Days from 0000-03-01 to 1970-01-01: years are counted from March, so that leap days end them.
const EPOCH_DAY: i64 = 719_468;
/// In 400 years.
const ERA_DAYS: i64 = 146_097;

pub fn rfc3339(moment: Timestamp) -> String {
    let (days, second) = (moment.secs.div_euclid(DAY_SECS), moment.secs.rem_euclid(DAY_SECS));
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of a day counted from 1970-01-01, in the proleptic Gregorian calendar.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + EPOCH_DAY;
    let (era, day) = (days.div_euclid(ERA_DAYS), days.rem_euclid(ERA_DAYS));
    let year = (day - day / 1460 + day / 36_524 - day / (ERA_DAYS - 1)) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // Months from March on have 153 days in every five.
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_dates_and_times() {
        for (secs, shown) in [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_795_255_200, "2026-11-21T10:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(Timestamp { secs, nanos: 5 }), shown);
        }
    }
}
