//! datetime.now().strftime of Python: a naive local time, in the C locale, with the directives of glibc.

use minijinja::Error;

use super::charge;

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

/// What stands between '%' and the letter of a directive.
#[derive(Clone, Copy, Default)]
struct Flags {
    /// '_', '-' or '0'.
    padding: Option<char>,
    upper: bool,
    swap: bool,
    width: usize,
    modifier: Option<char>,
}

/// `utc_offset`: seconds by which local time is ahead of UTC.
pub fn format(format: &str, unix_seconds: i64, utc_offset: i64) -> Result<String, Error> {
    charge(format.len() * 16)?;
    // Four-digit years, as in Python's datetime.
    let mut time = split(unix_seconds.saturating_add(utc_offset).clamp(-62_135_596_800, 253_402_300_799));
    time.unix = unix_seconds;
    let mut out = String::new();
    write(format, &time, Flags::default(), &mut out)?;
    Ok(out)
}

fn write(format: &str, time: &Time, outer: Flags, out: &mut String) -> Result<(), Error> {
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let Some((flags, code, length)) = directive(&rest[1..]) else { break };
        let flags = Flags { upper: flags.upper || outer.upper, ..flags };
        let (whole, after) = rest.split_at(1 + length);
        field(code, flags, whole, time, out)?;
        rest = after;
    }
    out.push_str(rest);
    Ok(())
}

/// The flags, the letter and the bytes of the directive that begins behind a '%'. None: the format ends in it.
fn directive(text: &str) -> Option<(Flags, char, usize)> {
    let mut flags = Flags::default();
    let mut chars = text.char_indices().peekable();
    while let Some((_, flag)) = chars.next_if(|(_, c)| matches!(c, '_' | '-' | '0' | '^' | '#')) {
        match flag {
            '^' => flags.upper = true,
            '#' => flags.swap = true,
            _ => flags.padding = Some(flag),
        }
    }
    while let Some((_, digit)) = chars.next_if(|(_, c)| c.is_ascii_digit()) {
        flags.width = flags.width.saturating_mul(10).saturating_add(digit as usize - '0' as usize);
    }
    flags.modifier = chars.next_if(|(_, c)| matches!(c, 'E' | 'O')).map(|(_, c)| c);
    if chars.next_if(|(_, c)| *c == ':').is_some() {
        // %:z, the zone of a naive time, is empty as %z is.
        return chars.next().filter(|(_, c)| *c == 'z').map(|(at, _)| (flags, 'z', at + 1));
    }
    chars.next().map(|(at, code)| (flags, code, at + code.len_utf8()))
}

fn iso_year_and_week(time: &Time) -> (i64, i64) {
    let is_leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = |year: i64| if is_leap(year) { 366 } else { 365 };
    // The Thursday of the week decides.
    let thursday = time.yearday + 3 - (time.weekday + 6) % 7;
    if thursday < 0 {
        return (time.year - 1, (thursday + days(time.year - 1)) / 7 + 1);
    }
    if thursday >= days(time.year) {
        return (time.year + 1, 1);
    }
    (time.year, thursday / 7 + 1)
}

/// The number of a directive, its digits and whether blanks pad it; None: it is no number.
fn number(code: char, time: &Time) -> Option<(i64, usize, bool)> {
    let hour12 = (time.hour + 11) % 12 + 1;
    let (year_of_week, week) = iso_year_and_week(time);
    Some(match code {
        'Y' => (time.year, 1, false),
        'G' => (year_of_week, 1, false),
        'C' => (time.year / 100, 2, false),
        'y' => (time.year % 100, 2, false),
        'g' => (year_of_week % 100, 2, false),
        'm' => (time.month, 2, false),
        'd' => (time.day, 2, false),
        'e' => (time.day, 2, true),
        'H' => (time.hour, 2, false),
        'k' => (time.hour, 2, true),
        'I' => (hour12, 2, false),
        'l' => (hour12, 2, true),
        'M' => (time.minute, 2, false),
        'S' => (time.second, 2, false),
        'j' => (time.yearday + 1, 3, false),
        'u' => ((time.weekday + 6) % 7 + 1, 1, false),
        'w' => (time.weekday, 1, false),
        'U' => ((time.yearday + 7 - time.weekday) / 7, 2, false),
        'W' => ((time.yearday + 7 - (time.weekday + 6) % 7) / 7, 2, false),
        'V' => (week, 2, false),
        's' => (time.unix, 1, true),
        _ => return None,
    })
}

/// The format that a directive stands for.
fn composite(code: char) -> Option<&'static str> {
    Some(match code {
        'D' | 'x' => "%m/%d/%y",
        'F' => "%Y-%m-%d",
        'R' => "%H:%M",
        'T' | 'X' => "%H:%M:%S",
        'r' => "%I:%M:%S %p",
        'c' => "%a %b %e %H:%M:%S %Y",
        _ => return None,
    })
}

fn name(code: char, swap: bool, time: &Time) -> Option<String> {
    let (day, month) = (DAYS[time.weekday as usize], MONTHS[time.month as usize - 1]);
    let half = if time.hour < 12 { "am" } else { "pm" };
    let text = match code {
        'a' => &day[..3],
        'A' => day,
        'b' | 'h' => &month[..3],
        'B' => month,
        'p' if swap => half,
        'p' => return Some(half.to_uppercase()),
        'P' => return Some(half.to_owned()),
        'n' => "\n",
        't' => "\t",
        '%' => "%",
        // A naive time has no zone.
        'z' | 'Z' => "",
        _ => return None,
    };
    let upper = swap && matches!(code, 'a' | 'A' | 'b' | 'h' | 'B');
    Some(if upper { text.to_uppercase() } else { text.to_owned() })
}

/// Whether the directive takes the modifier, which changes nothing in the C locale.
fn takes(code: char, modifier: char) -> bool {
    match modifier {
        'E' => "cCxXyYnNtpPrRTsZzu%".contains(code),
        _ => "deHkIlmMSuUVwWygGjCbBhntpPrRTsZz%".contains(code),
    }
}

/// `whole`: the directive with its '%', which is printed as it stands if there is none such.
fn field(code: char, flags: Flags, whole: &str, time: &Time, out: &mut String) -> Result<(), Error> {
    // Python itself replaces these, and only without flags.
    if whole == "%f" {
        out.push_str("000000");
        return Ok(());
    }
    if flags.modifier.is_some_and(|modifier| !takes(code, modifier)) {
        return pad(whole, flags, out);
    }
    if let Some((value, digits, blanks)) = number(code, time) {
        let padding = flags.padding.unwrap_or(if blanks { '_' } else { '0' });
        let digits = if padding == '-' { flags.width } else { digits.max(flags.width) };
        charge(digits)?;
        out.push_str(&match padding {
            '0' => format!("{value:0>digits$}"),
            _ => format!("{value:>digits$}"),
        });
        return Ok(());
    }
    let mut text = String::new();
    if let Some(format) = composite(code) {
        write(format, time, Flags { upper: flags.upper, ..Flags::default() }, &mut text)?;
    } else {
        text = name(code, flags.swap, time).unwrap_or_else(|| whole.to_owned());
    }
    if flags.upper && code != 'P' {
        text = text.to_uppercase();
    }
    let width = if code == 'z' { 0 } else { flags.width };
    pad(&text, Flags { width, ..flags }, out)
}

fn pad(text: &str, flags: Flags, out: &mut String) -> Result<(), Error> {
    let missing = flags.width.saturating_sub(text.len());
    charge(missing)?;
    let fill = if flags.padding == Some('0') { '0' } else { ' ' };
    out.extend(std::iter::repeat_n(fill, missing));
    out.push_str(text);
    Ok(())
}
