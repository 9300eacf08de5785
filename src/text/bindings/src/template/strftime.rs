//! datetime.strftime of a time in UTC, in the C locale.

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
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

struct Time {
    year: i64,
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
    /// 0: Sunday.
    weekday: i64,
    /// 0: the first of January.
    yearday: i64,
    unix: i64,
}

/// The civil calendar from days since 1970-01-01 (Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn split(unix: i64) -> Time {
    let days = unix.div_euclid(86_400);
    let seconds = unix.rem_euclid(86_400);
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let yearday = if month > 2 { day_of_year + 59 + i64::from(leap) } else { day_of_year - 306 };
    Time {
        year,
        month,
        day: day_of_year - (153 * shifted_month + 2) / 5 + 1,
        hour: seconds / 3_600,
        minute: seconds / 60 % 60,
        second: seconds % 60,
        weekday: (days + 4).rem_euclid(7),
        yearday,
        unix,
    }
}

pub fn format(format: &str, unix_seconds: i64) -> String {
    // Four-digit years, as in Python's datetime.
    let time = split(unix_seconds.clamp(-62_135_596_800, 253_402_300_799));
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut code = chars.next();
        let mut padding = None;
        if let Some(flag @ ('-' | '_' | '0')) = code {
            padding = Some(flag);
            code = chars.next();
        }
        match code {
            Some(code) => field(code, padding, &time, &mut out),
            None => out.push('%'),
        }
    }
    out
}

fn field(code: char, padding: Option<char>, time: &Time, out: &mut String) {
    let mut number = |value: i64, width: usize, default: char| match padding.unwrap_or(default) {
        '-' => out.push_str(&value.to_string()),
        '_' => out.push_str(&format!("{value:>width$}")),
        _ => out.push_str(&format!("{value:0>width$}")),
    };
    let hour12 = (time.hour + 11) % 12 + 1;
    match code {
        'Y' => number(time.year, 1, '0'),
        'C' => number(time.year / 100, 2, '0'),
        'y' => number(time.year % 100, 2, '0'),
        'm' => number(time.month, 2, '0'),
        'd' => number(time.day, 2, '0'),
        'e' => number(time.day, 2, '_'),
        'H' => number(time.hour, 2, '0'),
        'k' => number(time.hour, 2, '_'),
        'I' => number(hour12, 2, '0'),
        'l' => number(hour12, 2, '_'),
        'M' => number(time.minute, 2, '0'),
        'S' => number(time.second, 2, '0'),
        'f' => number(0, 6, '0'),
        'j' => number(time.yearday + 1, 3, '0'),
        'u' => number((time.weekday + 6) % 7 + 1, 1, '0'),
        'w' => number(time.weekday, 1, '0'),
        'U' => number((time.yearday + 7 - time.weekday) / 7, 2, '0'),
        'W' => number((time.yearday + 7 - (time.weekday + 6) % 7) / 7, 2, '0'),
        's' => number(time.unix, 1, '0'),
        'a' => out.push_str(&DAYS[time.weekday as usize][..3]),
        'A' => out.push_str(DAYS[time.weekday as usize]),
        'b' | 'h' => out.push_str(&MONTHS[time.month as usize - 1][..3]),
        'B' => out.push_str(MONTHS[time.month as usize - 1]),
        'p' => out.push_str(if time.hour < 12 { "AM" } else { "PM" }),
        'P' => out.push_str(if time.hour < 12 { "am" } else { "pm" }),
        'n' => out.push('\n'),
        't' => out.push('\t'),
        '%' => out.push('%'),
        // A naive datetime has no zone.
        'z' | 'Z' => {}
        'D' | 'x' => out.push_str(&composite("%m/%d/%y", time)),
        'F' => out.push_str(&composite("%Y-%m-%d", time)),
        'R' => out.push_str(&composite("%H:%M", time)),
        'T' | 'X' => out.push_str(&composite("%H:%M:%S", time)),
        'r' => out.push_str(&composite("%I:%M:%S %p", time)),
        'c' => out.push_str(&composite("%a %b %e %H:%M:%S %Y", time)),
        other => {
            out.push('%');
            out.extend(padding);
            out.push(other);
        }
    }
}

fn composite(pattern: &str, time: &Time) -> String {
    format(pattern, time.unix)
}
