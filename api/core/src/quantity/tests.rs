use super::*;
use proptest::prelude::*;

fn quantity(text: &str) -> Quantity {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn canonical_forms() {
    let cases = [
        ("1000m", "1"),
        ("0.5", "500m"),
        ("1024Mi", "1Gi"),
        ("250m", "250m"),
        ("2", "2"),
        ("8Gi", "8Gi"),
        ("8130904Ki", "8130904Ki"),
        ("1.5Gi", "1536Mi"),
        ("0.1Ki", "102400m"),
        ("512", "512"),
        ("1023Ki", "1023Ki"),
        ("1000Ki", "1000Ki"),
        ("100Ki", "100Ki"),
        ("0", "0"),
        ("0Gi", "0"),
        ("-0", "0"),
        ("-1500m", "-1500m"),
        ("+1", "1"),
        ("1e3", "1e3"),
        ("1E3", "1e3"),
        ("12e3", "12e3"),
        ("100e3", "100e3"),
        ("1000e3", "1e6"),
        ("1E", "1E"),
        ("1000E", "1000E"),
        ("64e000", "64"),
        ("1e-3", "1e-3"),
        ("1n", "1n"),
        ("0.1n", "1n"),
        ("1.0000000001", "1000000001n"),
        ("12345678901234567890", "12345678901234567890"),
        ("8Ei", "9223372036854775807"),
        ("-8Ei", "-9223372036854775807"),
        ("1.", "1"),
        (".5", "500m"),
        ("  1 ", "1"),
        ("00012", "12"),
        ("512Ki", "512Ki"),
        ("0.5Ki", "512"),
    ];
    for (text, canonical) in cases {
        assert_eq!(quantity(text).to_string(), canonical, "{text}");
        assert_eq!(quantity(canonical), quantity(text), "{text}");
    }
}

#[test]
fn what_is_no_quantity() {
    for text in [
        "", " ", "abc", "1x", "1KI", "1ki", "1K", "1 Gi", "1e", "1e+", "1ee5", "1k5", "--1", "1,5", "0x10",
        "1Gim", "NaN", "inf", "١",
    ] {
        assert!(text.parse::<Quantity>().is_err(), "{text:?}");
    }
}

#[test]
fn monstrous_literals_are_refused_by_their_looks() {
    let long = "1".repeat(4096);
    for text in ["1e-100000000", "1e100000000", "1e31", "1E-31", "1e0031", &long, &"0".repeat(33), "-1e999"] {
        assert!(literal_out_of_range(text), "{text}");
        assert_eq!(text.parse::<Quantity>().unwrap_err(), QuantityError::OutOfRange);
    }
    for text in [
        "1E",
        "1Ki",
        "1e9",
        "64e000",
        "1e30",
        "1e-30",
        "1e0030",
        "",
        "name",
        "e99999",
        "-",
        "+x1e99",
        "1e",
        "/srv/data-1e99",
    ] {
        assert!(!literal_out_of_range(text), "{text}");
    }
}

#[test]
fn rounding_is_away_from_zero_and_saturates() {
    assert_eq!(quantity("1.1").int(), 2);
    assert_eq!(quantity("-1.1").int(), -2);
    assert_eq!(quantity("1u").milli(), 1);
    assert_eq!(quantity("2").nano(), 2_000_000_000);
    assert_eq!(quantity("1e30").nano(), i64::MAX);
    assert_eq!(quantity("-1e30").int(), i64::MIN);
    assert_eq!(quantity("4096").nano(), 4_096_000_000_000);
    assert_eq!(quantity("64Ti").int(), 64 << 40);
}

#[test]
fn sums_and_order_are_exact() {
    let sum = quantity("0.1").plus(&quantity("200m"));
    assert_eq!(sum, quantity("300m"));
    assert_eq!(quantity("1Gi").plus(&quantity("512Mi")).to_string(), "1536Mi");
    assert_eq!(Quantity::ZERO.plus(&quantity("1Gi")).to_string(), "1Gi");
    let mut sorted: Vec<&str> = vec!["1e30", "1Ei", "-1", "1n", "0", "1001m", "1", "1e-9", "-1e30"];
    sorted.sort_by_key(|text| quantity(text));
    assert_eq!(sorted, ["-1e30", "-1", "0", "1n", "1e-9", "1", "1001m", "1Ei", "1e30"]);
    assert!(quantity("99999999999999999999999999999e3") > quantity("1"));
}

#[test]
fn bare_numbers_are_read_where_no_schema_stands_before() {
    assert_eq!(serde_json::from_str::<Quantity>("2").unwrap(), quantity("2"));
    assert_eq!(serde_json::from_str::<Quantity>("0.5").unwrap(), quantity("500m"));
    assert!(serde_json::from_str::<Quantity>("1e300").is_err());
    assert_eq!(serde_json::to_string(&quantity("1000m")).unwrap(), "\"1\"");
}

proptest! {
    #[test]
    fn printing_and_parsing_agree(
        mantissa in -1_000_000_000_000i64..1_000_000_000_000,
        suffix in prop::sample::select(vec!["", "n", "u", "m", "k", "M", "G", "Ki", "Mi", "Gi", "e3", "e-2"]),
    ) {
        let parsed = quantity(&format!("{mantissa}{suffix}"));
        let printed = parsed.to_string();
        prop_assert_eq!(quantity(&printed), parsed);
        prop_assert_eq!(quantity(&printed).to_string(), printed.clone());
        prop_assert!(!printed.contains('.'));
    }

    #[test]
    fn order_agrees_with_nano_units(a in -1_000_000i64..1_000_000, b in -1_000_000i64..1_000_000) {
        let (x, y) = (Quantity::from_milli(a), Quantity::from_milli(b));
        prop_assert_eq!(x.cmp(&y), a.cmp(&b));
        prop_assert_eq!(x.plus(&y), Quantity::from_milli(a + b));
        prop_assert_eq!(x.plus(&y).milli(), a + b);
    }

    #[test]
    fn never_panics(text in "[-+0-9.eEinumkKMGTP ]{0,40}") {
        if let Ok(quantity) = text.parse::<Quantity>() {
            let _ = (quantity.to_string(), quantity.nano(), quantity.int(), quantity.plus(&quantity));
            let _ = quantity.cmp(&Quantity::from_nano(1));
        }
    }

    #[test]
    fn the_guard_lets_every_parsable_literal_through(text in "[-+0-9.eEKMGi]{1,20}") {
        if text.parse::<Quantity>().is_ok() {
            prop_assert!(!literal_out_of_range(&text));
        }
    }
}
