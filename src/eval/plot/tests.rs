use super::*;

fn lines(n: usize, log: bool, points: &[(f64, f64)]) -> Chart {
    let series = (0..n).map(|i| {
        let points = points.iter().map(|p| (p.0, p.1 * (1.0 + i as f64))).collect();
        Series { name: format!("method <{i}> & \"more\""), points }
    });
    let axis = if log { Axis::log } else { Axis::linear };
    Chart::Lines { title: "cost < gain".into(), x: axis("ratio"), y: axis("PPL & 'KL'"), series: series.collect() }
}

fn map(rows: Vec<Vec<f64>>) -> Chart {
    Chart::HeatMap { title: "entries".into(), x_label: "KV head".into(), y_label: "layer".into(), rows }
}

fn texts(svg: &str) -> Vec<String> {
    let document = roxmltree::Document::parse(svg).unwrap();
    let text = |n: roxmltree::Node| n.text().unwrap_or("").trim().to_owned();
    document.descendants().filter(|n| n.has_tag_name("text")).map(text).collect()
}

#[test]
fn every_name_and_label_stands_in_the_file() {
    for n in [1, 5, 20] {
        for log in [false, true] {
            let text = svg(&[lines(n, log, &[(1.0, 20.0), (4.0, 22.0), (64.0, 300.0)])]).unwrap();
            let texts = texts(&text);
            let names = (0..n).map(|i| format!("method <{i}> & \"more\""));
            for want in names.chain(["cost < gain".into(), "ratio".into(), "PPL & 'KL'".into()]) {
                assert!(texts.contains(&want), "{want} is not among {texts:?}");
            }
            assert_eq!(log, ["1", "4", "64"].iter().all(|t| texts.contains(&(*t).to_owned())), "{texts:?}");
        }
    }
}

#[test]
fn the_legend_is_beside_the_lines_and_everything_is_inside() {
    let text =
        svg(&[lines(20, true, &[(1.0, 20.0), (64.0, 300.0)]), lines(3, false, &[(0.0, 1.0), (9.0, 2.0)])]).unwrap();
    let document = roxmltree::Document::parse(&text).unwrap();
    let root = document.root_element();
    let size = |name: &str| root.attribute(name).unwrap().parse::<f64>().unwrap();
    let number = |n: &roxmltree::Node, name: &str| n.attribute(name).unwrap().parse::<f64>().unwrap();
    let legend = document
        .descendants()
        .filter(|n| n.has_tag_name("text") && n.text().is_some_and(|t| t.contains("method")))
        .map(|n| number(&n, "x") - 36.0)
        .fold(f64::INFINITY, f64::min);
    let mut n_point = 0;
    for line in document.descendants().filter(|n| n.has_tag_name("polyline")) {
        let points: Vec<f64> =
            line.attribute("points").unwrap().split([',', ' ']).filter_map(|v| v.parse().ok()).collect();
        let width = points.iter().step_by(2).fold(0f64, |m, x| m.max(*x));
        // A line is left of the legend, or is the legend's own.
        assert!(width < legend || points[0] >= legend - 1.0, "{width} {legend}");
        assert!(points.chunks(2).all(|p| p[0] <= size("width") && p[1] <= size("height")));
        n_point += points.len() / 2;
    }
    assert!(n_point >= 2 * 2 * 23);
}

#[test]
fn lines_differ_in_colour_or_marker() {
    let mut kinds: Vec<_> = (0..20).map(|i| (i % COLOURS.len(), i % 4)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds.len(), 20);
}

#[test]
fn odd_values_give_a_chart_or_an_error() {
    let bad = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    for log in [false, true] {
        for points in [vec![], vec![(bad[0], 1.0)], vec![(1.0, bad[1]), (bad[2], 2.0)]] {
            let error = svg(&[lines(2, log, &points)]).unwrap_err().to_string();
            assert!(error.contains("cost < gain") && error.contains("at least one"), "{error}");
        }
        for v in [1e-300, 1e-12, 0.3, 1.0, 7.0, 123456.7, 1e16, 1e99, 1e300] {
            for points in
                [vec![(2.0, v), (3.0, 1.0)], vec![(v, 1.0)], vec![(1.0, 1.0), (v, v), (bad[0], v), (2.0, v * 1.5)]]
            {
                assert!(
                    svg(&[lines(3, log, &points)]).is_ok_and(|t| !texts(&t).is_empty() && !t.contains("NaN"))
                        || v == 1e-300
                        || v == 1e300
                );
            }
        }
    }
    assert!(svg(&[lines(1, true, &[(0.0, 1.0), (1.0, -2.0)])]).is_err());
    assert!(svg(&[lines(1, false, &[(0.0, 1.0), (1.0, -2.0)])]).is_ok());
    assert!(svg(&[]).is_err() && svg(&[map(vec![])]).is_err() && svg(&[map(vec![vec![bad[0]], vec![]])]).is_err());
}

#[test]
fn control_characters_do_not_spoil_the_file() {
    let chart = Chart::Lines {
        title: "a\u{1}b".into(),
        x: Axis::linear("\n"),
        y: Axis::linear(""),
        series: vec![Series { name: "c\0d\u{ffff}".into(), points: vec![(1.0, 1.0)] }],
    };
    assert!(texts(&svg(&[chart]).unwrap()).contains(&"a\u{fffd}b".to_owned()));
}

#[test]
fn a_map_has_a_cell_per_value_and_its_number() {
    let rows: Vec<Vec<f64>> = (0..30).map(|l| (0..3).map(|h| f64::from(100 + 10 * l + h)).collect()).collect();
    let text = svg(&[map(rows)]).unwrap();
    let texts = texts(&text);
    for want in ["100", "392", "246", "entries", "KV head", "layer", "29", "2"] {
        assert!(texts.contains(&want.to_owned()), "{want} is not among {texts:?}");
    }
    // Background, cells, steps of the scale of colours.
    assert_eq!(text.matches("<rect").count(), 1 + 90 + 64);
    for rows in [vec![vec![5.0; 4]; 3], vec![vec![1.0], vec![1.0, f64::NAN, 3.0]], vec![vec![1.0; 700]; 600]] {
        assert!(svg(&[map(rows)]).is_ok());
    }
}

#[test]
fn numbers_are_short() {
    let cases = [
        (0.0, "0"),
        (64.0, "64"),
        (0.05, "0.05"),
        (21.6508, "21.65"),
        (123456.7, "123457"),
        (2e-5, "2e-5"),
        (-1.5e7, "-1.5e7"),
    ];
    for (v, text) in cases {
        assert_eq!(axis::number(v), text);
    }
}
