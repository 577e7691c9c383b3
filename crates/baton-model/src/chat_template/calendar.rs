//! `strftime` as far as chat templates use it. UTC: an engine has no time zone that a client could mean.

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// Seconds since 1970 in UTC, formatted. A directive that is not known stays as it is.
pub(super) fn strftime(unix_s: u64, format: &str) -> String {
    let (days, second_of_day) = (unix_s / 86_400, unix_s % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);
    let month_name = MONTHS[month as usize - 1];
    // 1 January 1970 was a Thursday.
    let day_name = DAYS[((days + 3) % 7) as usize];
    let mut out = String::with_capacity(format.len() + 16);
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('Y') => out.push_str(&year.to_string()),
            Some('y') => out.push_str(&format!("{:02}", year % 100)),
            Some('m') => out.push_str(&format!("{month:02}")),
            Some('d') => out.push_str(&format!("{day:02}")),
            Some('B') => out.push_str(month_name),
            Some('b') => out.push_str(&month_name[..3]),
            Some('A') => out.push_str(day_name),
            Some('a') => out.push_str(&day_name[..3]),
            Some('H') => out.push_str(&format!("{hour:02}")),
            Some('M') => out.push_str(&format!("{minute:02}")),
            Some('S') => out.push_str(&format!("{second:02}")),
            Some('%') => out.push('%'),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}

/// Year, month and day of a day counted from 1970, in the Gregorian calendar. Years are counted from March, so that the
/// leap day is a year's last (Howard Hinnant, "chrono-compatible low-level date algorithms").
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_instants() {
        assert_eq!(strftime(0, "%A %d %B %Y %H:%M:%S"), "Thursday 01 January 1970 00:00:00");
        assert_eq!(strftime(951_782_400 + 86_399, "%a %d %b %Y %H:%M:%S"), "Tue 29 Feb 2000 23:59:59");
        assert_eq!(strftime(4_107_542_400, "%Y-%m-%d %y"), "2100-03-01 00");
        assert_eq!(strftime(0, "100%% %q %"), "100% %q %");
    }

    #[test]
    fn days_follow_one_another() {
        let mut last = civil(0);
        for day in 1..60_000 {
            let next = civil(day);
            let same_month = next == (last.0, last.1, last.2 + 1);
            let next_month = next == (last.0, last.1 + 1, 1) || next == (last.0 + 1, 1, 1) && last.1 == 12;
            assert!(same_month || next_month && last.2 >= 28, "{last:?} {next:?}");
            last = next;
        }
    }
}
