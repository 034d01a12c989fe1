"""The kernels' sources as tools/mutate.py sees them: functions, blocks, statements. No compiler: it knows the few forms
that src/sm90 is written in."""

import re
from collections.abc import Iterator

COMMENT = re.compile(r"//[^\n]*")
HEADER = re.compile(r"TANDEM_(?:DEVICE|KERNEL)\b(?:\s*TANDEM_LAUNCH_BOUNDS\([^)]*\)\s)?[^;{()]*?(\w+)\(")
LAUNCH_BOUNDS = re.compile(r"TANDEM_LAUNCH_BOUNDS\((?:[^()]|\([^()]*\))*\)")
CONTROL = re.compile(r"(?:TANDEM_(?:NO_)?UNROLL\s+)*(if|for|while|do|switch)\b")
CALLED = re.compile(r"\b(\w+)(?:<[^;(){}]*>)?\(")
EXPRESSION = re.compile(r"(?!return\b|const\b|constexpr\b|using\b)[\w:.>-]+(?:<[^;(){}]*>)?\(")


def blanked(text: str) -> str:
    """The text with comments replaced by blanks, so that places stay."""
    return COMMENT.sub(lambda match: " " * len(match.group()), text)


def past_closing(code: str, position: int) -> int:
    """Past the bracket that closes the one at the position."""
    depth = 0
    while True:
        depth += {"(": 1, "{": 1, "[": 1, ")": -1, "}": -1, "]": -1}.get(code[position], 0)
        position += 1
        if depth == 0:
            return position


def past_blanks(code: str, position: int) -> int:
    while position < len(code) and code[position].isspace():
        position += 1
    return position


def past_simple(code: str, position: int) -> int:
    """Past the semicolon, or past the body of a function or class."""
    while code[position] != ";":
        if code[position] in "([{":
            braces = code[position] == "{"
            position = past_closing(code, position)
            following = past_blanks(code, position)
            if braces and (following == len(code) or code[following] not in ";,.)"):
                return position
        elif code[position] == "}":
            return position
        else:
            position += 1
    return position + 1


def past_statement(code: str, position: int) -> int:
    """Past the statement that begins there."""
    if code[position] == "{":
        return past_closing(code, position)
    match = CONTROL.match(code, position)
    if not match:
        return past_simple(code, position)
    if match.group(1) == "do":
        return code.index(";", past_statement(code, past_blanks(code, match.end()))) + 1
    end = past_statement(code, past_blanks(code, past_closing(code, code.index("(", match.end()))))
    otherwise = past_blanks(code, end)
    if match.group(1) == "if" and re.match(r"else\b", code[otherwise : otherwise + 5]):
        return past_statement(code, past_blanks(code, otherwise + 4))
    return end


def blocks(code: str) -> Iterator[list[tuple[int, int]]]:
    """For each pair of braces begin and end of the statements directly between them."""
    for opening in (match.start() for match in re.finditer(r"{", code)):
        end = past_closing(code, opening) - 1
        position = past_blanks(code, opening + 1)
        found = []
        while position < end:
            after = past_statement(code, position)
            found.append((position, after))
            position = past_blanks(code, max(after, position + 1))
        yield found


def body_of(statement: str) -> str:
    """What an if or a loop does; of another statement itself."""
    match = CONTROL.match(statement)
    if not match or match.group(1) == "do":
        return statement
    return statement[past_closing(statement, statement.index("(", match.end())) :].lstrip()


def without_arguments(expression: str) -> str:
    """An expression whose calls have "..." for arguments."""
    kept = []
    position = 0
    while position < len(expression):
        opens = expression[position] == "("
        kept.append("(...)" if opens else expression[position])
        position = past_closing(expression, position) if opens else position + 1
    return "".join(kept)


def function_at(code: str, position: int) -> str:
    headers = [
        match.group(1) for match in HEADER.finditer(LAUNCH_BOUNDS.sub(lambda m: " " * len(m.group()), code[:position]))
    ]
    return headers[-1] if headers else ""


def bodies(code: str) -> Iterator[tuple[str, str]]:
    """Name and body of each function."""
    blank = LAUNCH_BOUNDS.sub(lambda m: " " * len(m.group()), code)
    for match in HEADER.finditer(blank):
        end = past_closing(blank, match.end() - 1)
        opening = blank.find("{", end)
        semicolon = blank.find(";", end)
        if opening >= 0 and (semicolon < 0 or opening < semicolon):
            yield match.group(1), blank[opening : past_closing(blank, opening)]


class NamesThatReach:
    """Functions in which a pattern occurs, or that call such a function. Of several with one name the calling file's
    own counts, or any."""

    def __init__(self, pattern: re.Pattern[str], codes: dict[str, str]) -> None:
        functions = [(file, name, body) for file, code in codes.items() for name, body in bodies(code)]
        self.defined = {(file, name) for file, name, _ in functions}
        self.reached = {(file, name) for file, name, body in functions if pattern.search(body)}
        self.names = {name for _, name in self.reached}
        while True:
            more = {
                (file, name)
                for file, name, body in functions
                if (file, name) not in self.reached and self.called_in(file, body)
            }
            if not more:
                return
            self.reached |= more
            self.names |= {name for _, name in more}

    def called_in(self, file: str, code: str) -> bool:
        called = self.names & set(CALLED.findall(code))
        return any((file, name) in self.reached or (file, name) not in self.defined for name in called)
