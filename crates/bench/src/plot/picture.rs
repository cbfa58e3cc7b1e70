//! The shapes of a picture, and the place of the next one.

use std::fmt::Write;

const WIDTH: u32 = 1000;
pub(super) const ROW: u32 = 16;
/// For a chart's title, and between charts.
pub(super) const TITLE: u32 = 40;
pub(super) const MARGIN: u32 = 20;

/// Shapes so far, and where the next one goes.
pub(super) struct Picture {
    pub(super) shapes: String,
    pub(super) y: u32,
}

impl Picture {
    pub(super) fn text(&mut self, x: u32, anchor: &str, text: &str) {
        let (y, text) = (self.y + 12, escaped(text));
        let _ =
            writeln!(self.shapes, r#"<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>"#);
    }

    pub(super) fn title(&mut self, text: &str) {
        let (y, text) = (self.y, escaped(text));
        let _ = writeln!(self.shapes, r#"<text x="{MARGIN}" y="{y}" class="title">{text}</text>"#);
    }

    pub(super) fn end(self) -> String {
        let height = self.y + MARGIN;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\">\n\
             <style>text {{ font: 12px sans-serif }} .title {{ font: bold 14px sans-serif }} \
             path {{ stroke: black; fill: none }}</style>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{}</svg>\n",
            self.shapes
        )
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
