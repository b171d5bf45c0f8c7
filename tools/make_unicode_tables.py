#!/usr/bin/env python3
"""Prints src/text/unicode/tables.inc from the Unicode Character Database: what utf8proc does not tell.

    make_unicode_tables.py > src/text/unicode/tables.inc     (reads /usr/share/unicode, Debian's unicode-data 15.0)
"""
import re

UCD = "/usr/share/unicode/"


def rows(name):
    """[(code points, fields...)] of one file, without comments."""
    for line in open(UCD + name, encoding="utf-8"):
        line = line.split("#")[0].strip()
        if line:
            yield [field.strip() for field in line.split(";")]


def code_points(text):
    first, _, last = text.partition("..")
    return range(int(first, 16), int(last or first, 16) + 1)


def property_of(name, wanted):
    return {c for fields in rows(name) if fields[1] == wanted for c in code_points(fields[0])}


def read_unicode_data():
    category, combining, decomposition = {}, {}, {}
    first = None
    for fields in rows("UnicodeData.txt"):
        c = int(fields[0], 16)
        covered = range(first, c + 1) if fields[1].endswith(", Last>") else [c]
        first = c
        for each in covered:
            category[each] = fields[2]
        combining[c] = int(fields[3])
        if fields[5]:
            decomposition[c] = [int(part, 16) for part in re.sub("<.*>", "", fields[5]).split()]
    return category, combining, decomposition


def print_ranges(name, meaning, members):
    print(f"// {meaning}\nconstexpr CodePointRange {name}[] = {{")
    start = last = None
    for c in sorted(members) + [None]:
        if last is not None and c == last + 1:
            last = c
            continue
        if start is not None:
            print(f"    {{0x{start:X}, 0x{last:X}}},")
        start = last = c
    print("};")


def print_mappings(name, meaning, mappings):
    print(f"// {meaning}\nconstexpr LongCaseMapping {name}[] = {{")
    for c, to in sorted(mappings.items()):
        print(f"    {{0x{c:X}, {{{', '.join(f'0x{each:X}' for each in to)}}}}},")
    print("};")


def main():
    category, combining, decomposition = read_unicode_data()
    age = {}
    for fields in rows("DerivedAge.txt"):
        for c in code_points(fields[0]):
            age[c] = tuple(map(int, fields[1].split(".")))

    parts = {c for whole in decomposition.items() for c in [whole[0], *whole[1]]}
    takes_part = parts | {c for c, value in combining.items() if value}
    print("// Made by tools/make_unicode_tables.py from the Unicode Character Database 15.0.")
    print_ranges("kNotNormalized", "Assigned after Unicode 9 and changed by, or part of, a normalization.",
                 {c for c in takes_part if age[c] > (9, 0)})
    print_ranges("kLaterPunctuation", "Punctuation assigned after Unicode 8.",
                 {c for c, value in category.items() if value[0] == "P" and age[c] > (8, 0)})
    print_ranges("kOtherUppercase", "Uppercase, but of another category than Lu.",
                 property_of("PropList.txt", "Other_Uppercase"))
    print_ranges("kOtherLowercase", "Lowercase, but of another category than Ll.",
                 property_of("PropList.txt", "Other_Lowercase"))
    print_ranges("kOtherAlphabetic", "Alphabetic, but neither letters, letter numbers nor marks.",
                 {c for c in property_of("PropList.txt", "Other_Alphabetic") if category[c][0] not in "LM"})
    ignorable = property_of("DerivedCoreProperties.txt", "Case_Ignorable")
    print_ranges("kOtherCaseIgnorable", "Case_Ignorable, but none of Mn, Me, Cf, Lm and Sk.",
                 {c for c in ignorable if category.get(c, "Cn") not in ("Mn", "Me", "Cf", "Lm", "Sk")})
    print_ranges("kWhiteSpace", "White_Space.", property_of("PropList.txt", "White_Space"))

    upper, title = {}, {}
    for fields in rows("SpecialCasing.txt"):
        if len(fields) > 5:
            continue   # only in some languages or contexts
        c = int(fields[0], 16)
        for mappings, spelled in ((title, fields[2]), (upper, fields[3])):
            to = [int(each, 16) for each in spelled.split()]
            if len(to) > 1:
                mappings[c] = to
    print_mappings("kLongUpper", "Upper cases of more than one character.", upper)
    print_mappings("kLongTitle", "Title cases of more than one character.", title)


if __name__ == "__main__":
    main()
