use super::*;

#[track_caller]
fn assert_stated(text: &str, expected: &str, is_stated: bool) {
    let (stated, wanted) = (read_figures(text), read_figures(expected));
    assert!(!wanted.is_empty(), "no figure in {expected:?}");
    let all = wanted.iter().all(|figure| stated.iter().any(|other| figure.is_stated_by(other)));
    assert_eq!(all, is_stated, "{expected:?} in {text:?}:\n{wanted:?}\n{stated:?}");
}

#[test]
fn equal_quantities_match_in_any_notation_and_language() {
    for (text, expected) in [
        ("It weighs 410 grams.", "0.41 kg"),
        ("Es wiegt 0,41 kg.", "410 g"),
        ("Il pèse 410 grammes", "410 g"),
        ("Он весит 410 граммов", "410 g"),
        ("它重410克。", "410 g"),
        ("它重四百一十克。", "410 g"),
        ("น้ำหนัก ๔๑๐ กรัม", "410 g"),
        ("الوزن ٤١٠ غرام", "410 g"),
        ("वज़न ४१० ग्राम", "410 g"),
        ("1,5 Mio. Euro", "€1,500,000"),
        ("costs EUR 2 000", "€2,000"),
        ("1.234.567,89 €", "1,234,567.89 €"),
        ("१२,३४,५६७", "1234567"),
        ("3万人", "30,000"),
        ("2.5 million euros", "€2,500,000"),
        ("a two-week trial", "14 days"),
        ("for twenty-four hours", "1 day"),
        ("two hundred thousand people", "200,000"),
        ("at 68 °F it", "20 °C"),
        ("45 km/h", "12.5 m/s"),
        ("zwölf Monate", "1 Jahr"),
        ("1’500 Franken", "1500"),
        ("93 percent", "93%"),
    ] {
        assert_stated(text, expected, true);
    }
}

#[test]
fn different_quantities_do_not_match() {
    for (text, expected) in [
        ("It weighs 410 kg", "410 g"),
        ("in 2 days", "2 weeks"),
        ("costs $2,000", "€2,000"),
        ("at 20 °C", "-20 °C"),
        ("version 4.2.1", "4.2"),
        ("IP67", "67"),
        ("COVID-19 spread", "19"),
        ("128 days", "28 days"),
        ("2 MB", "2 MiB"),
        ("三百", "30"),
    ] {
        assert_stated(text, expected, false);
    }
}

#[test]
fn dates_match_in_any_notation_and_calendar() {
    for (text, expected) in [
        ("on October 30, 2031 it", "30 October 2031"),
        ("el 30 de octubre de 2031", "October 30, 2031"),
        ("le 30 octobre 2031", "2031-10-30"),
        ("am 30. Oktober 2031", "30 October 2031"),
        ("am 30.10.2031", "30 October 2031"),
        ("L-7,Lamp,2031-10-05,2031-10-30,650", "30 October 2031"),
        ("L-7,Lamp,2031-10-05,2031-10-30,650", "5 October 2031"),
        ("30 октября 2031 года", "October 30, 2031"),
        ("30 Ekim 2031 tarihinde", "October 30, 2031"),
        ("2031年10月30日", "October 30, 2031"),
        ("2031년 10월 30일", "October 30, 2031"),
        ("令和13年10月30日", "October 30, 2031"),
        ("30 ตุลาคม 2574", "October 30, 2031"),
        ("٣٠ أكتوبر ٢٠٣١", "October 30, 2031"),
        ("30 अक्टूबर 2031", "October 30, 2031"),
        ("۸ آبان ۱۴۱۰", "October 30, 2031"),
        ("the 3rd of March 2026", "March 3, 2026"),
        ("on 30 October 2031", "October 2031"),
        ("10/30/2031", "October 30, 2031"),
        ("ngày 30 tháng 10 năm 2031", "October 30, 2031"),
        ("2031. október 30.", "October 30, 2031"),
    ] {
        assert_stated(text, expected, true);
    }
    for (text, expected) in [
        ("in October 2031", "October 30, 2031"),
        ("on 13 March 2026", "3 March 2026"),
        ("on 3 March", "3 March 2026"),
        ("October 30, 2030", "October 30, 2031"),
    ] {
        assert_stated(text, expected, false);
    }
}

#[test]
fn times_and_names_match_by_value() {
    assert_stated("the meeting is at 2:30 pm", "14:30", true);
    assert_stated("opens at 9 am on", "9:00 a.m.", true);
    assert_stated("version 4.2.1 of", "4.2.1", true);
    assert_stated("rated ip67", "IP67", true);
    assert_stated("IP68", "IP67", false);
}

#[track_caller]
fn invented(text: &str, source: &str) -> Vec<String> {
    find_invented_figures(text, &read_figures(source))
        .into_iter()
        .map(|figure| text[figure.range].to_owned())
        .collect()
}

#[test]
fn figure_that_no_source_has_is_invented() {
    let source =
        "The lamp weighs 410 g and costs €59. It was first sold on 30 October 2019, in 12 countries.";
    for (text, figures) in [
        ("It weighs 420 g.", vec!["420 g"]),
        ("It weighs 0.41 kg and costs 59 euros.", vec![]),
        ("It was first sold in October 2019.", vec![]),
        ("It was sold on October 31, 2019.", vec!["October 31, 2019"]),
        ("It was sold in 12 countries since 2019.", vec![]),
        ("Model X200 weighs about 400 g.", vec!["X200", "400 g"]),
    ] {
        assert_eq!(invented(text, source), figures, "{text}");
    }
    // The month alone does not give the day.
    assert_eq!(
        invented("It ends on October 30, 2031.", "It ends in October 2031; 30 people came."),
        ["October 30, 2031"]
    );
    // The year stands in the heading.
    assert!(invented("It ends on October 30, 2031.", "# Plan 2031\n\nIt ends on 30 October.").is_empty());
    // The unit stands in the head of a table.
    assert!(invented("It weighs 410 g.", "| weight (g) | 410 |").is_empty());
    assert!(invented("It weighs 0.41 kg.", "| weight (g) | 410 |").is_empty());
}

#[test]
fn figure_that_follows_from_others_is_shown_with_its_calculation() {
    for (text, source, calculation) in [
        ("It takes 90 minutes in all.", "The first part takes 60 min, the second 30 min.", "60 + 30"),
        ("It fell by 25%.", "It sold 400 t in May and 300 t in June.", "from 400 to 300"),
        ("About 1.5 million people live there.", "1,512,300 people live there.", "1512300 rounded"),
        (
            "The offer ends on 31 January 2026.",
            "It runs for 30 days from 1 January 2026.",
            "2026-01-01 + 30 days",
        ),
        (
            "She was 41 years old.",
            "Born on 3 May 1920, she died on 7 June 1961.",
            "from 1920-05-03 to 1961-06-07",
        ),
    ] {
        let known = read_figures(source);
        let figures = read_figures(text);
        let figure = figures.iter().find(|figure| !figure.is_found_in(&known)).expect(text);
        assert_eq!(
            derive_figure(figure, &known).map(|one| one.to_string()).as_deref(),
            Some(calculation),
            "{text}"
        );
    }
}

#[test]
fn digits_of_every_script_have_their_value() {
    for digits in [
        "0123456789",
        "٠١٢٣٤٥٦٧٨٩",
        "०१२३४५६७८९",
        "๐๑๒๓๔๕๖๗๘๙",
        "０１２３４５６７８９",
        "𝟎𝟏𝟐𝟑𝟒𝟓𝟔𝟕𝟖𝟗",
        "𝟘𝟙𝟚𝟛𝟜𝟝𝟞𝟟𝟠𝟡",
    ] {
        let values: Vec<u32> = digits.chars().filter_map(number::digit_of).collect();
        assert_eq!(values, (0..10).collect::<Vec<u32>>(), "{digits}");
    }
}

#[test]
fn any_text_is_read_without_a_panic() {
    for text in [
        "",
        "1",
        "-",
        "1.",
        ".5",
        "1.2.3.4.5.6",
        "1,,2",
        "٪٥",
        "年月日",
        "$",
        "12:99",
        "October",
        "30 October",
        "十百千万",
        "1 000 000 000 000 000 000 000",
    ] {
        for figure in read_figures(text) {
            assert!(!figure.readings.is_empty() && text.get(figure.range.clone()).is_some(), "{text}");
        }
    }
}
