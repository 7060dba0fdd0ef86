"""Passwords and tokens in texts: found by their form or by the name before them, so that no tool repeats them.

Many services give their tokens a prefix for this purpose; the prefixes here are documented by the services and searched for by
scanners of repositories. A password in a URL, a private key and an authorization header have a form, too. Other secrets, such as
the 40 hexadecimal digits of a Weights & Biases key, look like any checksum: they are recognized by the name before them. A secret
of unknown form under a harmless name is not noticed.
"""

import functools
import re
from collections.abc import Mapping
from typing import Any

from lt_shared.lazy_patterns import regex

NOT_SHOWN = "(not shown)"
# Tokens of a text, not of a service.
_OF_TEXT = (
    "bos",
    "eos",
    "eod",
    "eot",
    "pad",
    "unk",
    "mask",
    "sep",
    "cls",
    "per",
    "next",
    "last",
    "first",
    "end",
    "image",
    "start",
)
_NO_TEXT = "".join(rf"(?<!{word}[ _-])" for word in _OF_TEXT)
# Words that stand for nothing but secrets, unlike a token, whatever comes after them.
_PLAIN_WORD = (
    "passwords?|passwd|passphrase|"
    "(?:api|app|access|account|secret|secret[_-]?access|private|wandb|auth|ssh|encryption|signing|master|client|storage)[_-]?key|"
    "(?:access|refresh|auth|session|security|bearer|id)[_-]?token|(?:client|app|api|webhook)[_-]?secret"
)
WORD = rf"{_NO_TEXT}token|pwd|secrets?|credentials?|signature|authorization|webhook[_-]?url|access[_-]?key[_-]?id|{_PLAIN_WORD}"
# What may come after the word: a number or which one it is, nothing that makes it the place or the size of a secret.
_WHICH = r"(?:[_-]?\d{1,3}|[_-](?:value|base64|b64|ci|dev|prod|test|staging|default|main|old|new|backup))?"
NAME = regex(rf"(.*[._-])?({WORD}){_WHICH}", re.IGNORECASE)
# USER:PASSWORD@, also with a slash in the password; HOST:PORT/... and the digest of an image after its tag are none.
_USER_OF_PASSWORD = r"(?<=://)[^/@\s:#]*:(?!\d+[/#])"
# It stops where the next one begins: each would look through the rest of a long word for an @ that is not there.
PASSWORD = regex(rf"{_USER_OF_PASSWORD}(?:(?!{_USER_OF_PASSWORD})\S)*@(?!sha256:)")
_URL_USER = regex(_USER_OF_PASSWORD)
_AT_DIGEST = "@sha256:"
_WORD = regex(r"\S+")
# A user without a password is a token at the addresses of git's hosts; to a registry it is a name.
WEB_USER = regex(r"(?<=http://)[^/@\s]+@|(?<=https://)[^/@\s]+@")
_FORMS = (
    # Amazon: ids of keys, long-lived and of a session (STS), with the secret if it stands beside; session tokens; signed URLs.
    r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Za-z0-9])(?::[^\s@]+(?=@)|[\s:,;|\"']{1,6}[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+]))?",
    r"(?:IQoJb3JpZ2lu|FwoGZXIvYXdz|FQoGZXIvYXdz|FwoDYXdz)[A-Za-z0-9/+=%]{50,}",
    r"X-(?:Amz|Goog)-(?:Signature|Credential|Security-Token)=[^&\s\"']+",
    # Places of code and packages.
    r"gh[oprsu]_[A-Za-z0-9]{10,}|github_pat_\w{10,}",
    r"gl(?:pat|dt|rt|rtr|cbt|ptt|ft|imt|agent|soat|ffct)-[\w.-]{10,}|GR1348941[\w-]{20}",
    r"lin_(?:api|oauth)_[A-Za-z0-9]{30,}|figd_[\w-]{20,}|PMAK-[\w-]{30,}|ntn_[A-Za-z0-9]{30,}",
    r"secret_(?=[A-Za-z]*\d)[A-Za-z0-9]{43}(?![A-Za-z0-9])",
    r"npm_[A-Za-z0-9]{36}(?![A-Za-z0-9])|pypi-AgEI[\w-]{20,}|dckr_(?:pat|oat)_[\w-]{20,}|ATATT3[\w=-]{50,}",
    # Models and training.
    r"hf_(?=[A-Za-z]*[0-9A-Z])[A-Za-z0-9]{10,}(?![A-Za-z0-9_])|api_org_[A-Za-z0-9]{30,}",
    r"sk-(?:proj|svcacct|admin|ant|or|lf)-[\w-]{20,}|sk-(?=[A-Za-z]*\d)[A-Za-z0-9]{32,}|sess-[A-Za-z0-9]{32,}",
    r"nvapi-[\w-]{20,}|wandb_v\d+_[\w-]{20,}|(?<=wandb login )[0-9a-f]{40}(?![0-9a-f])|eyJhcGlf[A-Za-z0-9+/=]{40,}",
    r"gsk_[A-Za-z0-9]{30,}|xai-[A-Za-z0-9]{30,}|r8_[A-Za-z0-9]{30,}|pplx-[A-Za-z0-9]{30,}|tgp_v1_[\w-]{30,}|KGAT_[0-9a-f]{32}",
    r"dapi[0-9a-f]{32}(?:-\d)?(?![0-9a-f])",
    # Clouds.
    r"AIza[\w-]{35}(?![\w-])|ya29\.[\w-]{20,}|GOCSPX-[\w-]{20,}|1//0[\w-]{30,}",
    r"(?:Account|SharedAccess|Shared)Key=[A-Za-z0-9+/]{40,}={0,2}|[A-Za-z0-9+/]{86}==(?![A-Za-z0-9+/=])",
    r"(?<=[?&])sig=[^&\s\"']{20,}|\w{3}8Q~[\w.~-]{31,34}",
    r"do[opr]_v1_[0-9a-f]{64}|hv[sbr]\.[\w-]{20,}|glsa_[A-Za-z0-9]{32}_[0-9a-f]{8}|glc_[A-Za-z0-9+/=]{32,}|tskey-\w+-[\w-]{10,}",
    r"HRKU-[\w-]{20,}|dp\.(?:pt|st|ct|sa|scim|audit)\.[\w.-]{20,}|pscale_(?:tkn|pw|oauth)_[\w.=-]{20,}|NRAK-[A-Za-z0-9]{20,}",
    r"pul-[0-9a-f]{40}(?![0-9a-f])|[A-Za-z0-9]{14}\.atlasv1\.[\w=-]{40,}",
    # Messages and payments.
    r"SK[0-9a-f]{32}(?![A-Za-z0-9])|(?<![\w-])key-[0-9a-f]{32}(?![\w-])|[0-9a-f]{32}-us\d{1,2}(?![\w-])",
    r"x(?:key|smtp)sib-[\w-]{20,}|shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}(?![A-Za-z0-9])",
    r"xox[abceoprs]-[\w-]{10,}|xoxe\.xox[bp]-[\w-]{10,}|xapp-\d-[\w-]{10,}|SG\.[\w-]{16,}\.[\w-]{16,}",
    r"hooks\.slack\.com/(?:services|workflows|triggers)/[\w/+-]{15,}|discord(?:app)?\.com/api/webhooks/\d+/[\w-]{20,}",
    r"(?<![\w-])[\w-]+\.webhook\.office\.com/webhookb2/[^\s\"']{20,}|\d{8,10}:AA[\w-]{33}(?![\w-])",
    r"[rs]k_(?:live|test)_[A-Za-z0-9]{10,}|whsec_[A-Za-z0-9+/=]{20,}",
    # Of any service.
    r"eyJ[\w-]{8,}\.(?:eyJ[\w-]{4,}\.[\w-]*|[\w-]*\.[\w-]+\.[\w-]+\.[\w-]+)",
    r"AGE-SECRET-KEY-1[A-Z0-9]{58}",
)
TOKEN = regex(rf"(?<![A-Za-z0-9])(?:{'|'.join(_FORMS)})")
# Up to its end, or to the end of the text: a log may be cut off.
PRIVATE_KEY = regex(
    r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----(?:.*?-----END [A-Z0-9 ]{0,30}KEY(?: BLOCK)?-----|.*)", re.DOTALL
)
# A parameter of a URL that has the name of a secret.
QUERY = regex(rf"([?&](?:[\w.-]*[._-])?(?:{WORD}){_WHICH}=)(?!\$|\(not shown\))[^&\s\"'#]+", re.IGNORECASE)
# In JSON within JSON, quotes have backslashes before them. The quote at the end has as many as the one at the begin, a quote
# within the value has more. A value that is cut off goes to the end of the line.
_OPENING = r"(?P<escape>\\{0,7})(?P<quote>[\"'])"
_CLOSING = r"(?<!\\)(?P=escape)(?P=quote)"
_QUOTED = rf"{_OPENING}(?:(?s:.)*?{_CLOSING}|[^\n]*)"
_VALUE = rf"(?:{_QUOTED}|[^\s,;&\"'}}]+)"
_QUOTE = r"\\{0,7}[\"']"
# A variable in place of a value shows nothing.
_NO_REFERENCE = rf"(?!(?:{_QUOTE})?(?:\$[{{(]?\w|\(not shown\)|\s|\*{{3}})|{_QUOTE}(?:{_QUOTE}|\Z))"
ASSIGNMENT = regex(rf"(?<![A-Za-z0-9])((?:{WORD}){_WHICH}(?:{_QUOTE})? ?= ?){_NO_REFERENCE}{_VALUE}", re.IGNORECASE)
# With a colon, only quoted names (JSON) or names in capitals (variables) count, because prose has colons, too.
_NAME = rf"(?:[\w.-]*[._-])?(?:{WORD}){_WHICH}"
ENTRY = regex(rf"([\"']{_NAME}{_QUOTE}\s*:\s*){_NO_REFERENCE}{_VALUE}", re.IGNORECASE)
CAPITALS = regex(
    rf"(?<![A-Za-z0-9_])((?:[A-Z0-9]+_)*(?:TOKEN|SECRET|PASSWORD|PASSWD|(?:API|ACCESS|SECRET|PRIVATE)_?KEY|CREDENTIALS)\s*:\s*)"
    rf"{_NO_REFERENCE}{_VALUE}"
)
# In YAML the name has no quotes, and the value none if it looks made up: a word of letters and digits, not a path.
YAML = regex(
    rf"(?<![A-Za-z0-9])((?:{_PLAIN_WORD}){_WHICH}:[ \t]{{1,9}}){_NO_REFERENCE}"
    rf"(?:(?={_QUOTE}[^\"'\n]{{4}})(?!{_QUOTE}(?:str|Optional)\b){_QUOTED}"
    r"|(?![/~.])(?=[^\s\d]*\d)(?=[^\sA-Za-z]*[A-Za-z])[^\s,;&\"'(){}<>\[\]\\]{8,}(?=[\s,;&\"'}\\]|$))",
    re.IGNORECASE,
)
# Kubernetes writes a variable as a table of its name and its value.
_PAIR = rf"[\s,]{{1,40}}(?:{_QUOTE})?"
VARIABLE = regex(
    rf"((?<!\w)name(?:{_QUOTE})?\s{{0,9}}:\s{{0,9}}(?:{_QUOTE})?{_NAME}(?:{_QUOTE})?{_PAIR}value(?:{_QUOTE})?\s{{0,9}}:\s{{0,9}})"
    rf"(?!None|null){_NO_REFERENCE}{_VALUE}",
    re.IGNORECASE,
)
# Alone or one of a list of arguments.
_BEFORE = r"(?<![^\s\"'(\[,])"
OPTION = regex(rf"{_BEFORE}(--?{_NAME}(?:\s+|{_QUOTE},\s*)){_NO_REFERENCE}(?!(?:{_QUOTE})?-){_VALUE}", re.IGNORECASE)
_USER = rf"{_BEFORE}((?:-u|--user|--proxy-user)(?:[ =]?|{_QUOTE},\s?)"
_NO_PASSWORD = r"(?![\"']?\$|\(not shown\)|\d+(?:[:\s\\\"']|$))"
LOGIN = regex(rf"{_USER}[\w.@-]+:){_NO_PASSWORD}(?:{_QUOTED}|[^\s\"']+)")
QUOTED_LOGIN = regex(rf"{_USER}{_OPENING}[\w.@-]+:){_NO_PASSWORD}(?:(?!{_CLOSING})[^\n])+")
_SCHEME = r"(?:bearer|basic|token|digest|apikey|aws4-hmac-sha256)"
HEADER = regex(
    rf"((?:proxy-)?authorization(?:{_QUOTE})?\s*[:=]\s*(?:{_QUOTE})?(?!(?:\w+\s+)?\(not shown\))(?:{_SCHEME}\s+)?"
    rf"|(?<![A-Za-z0-9])x-(?:api|auth|goog-api|amz-security)-(?:key|token)(?:{_QUOTE})?\s*:\s*(?:{_QUOTE})?"
    r"|(?<![A-Za-z0-9])bearer\s+(?=[\w.~+/-]*\d)(?=[\w.~+/=-]{16}))"
    rf"(?!(?:{_QUOTE})?(?:\$|\(not shown\)))(?:[^\s\"',\\]|\\(?![\"']))+",
    re.IGNORECASE,
)
REFUSED = (PASSWORD, TOKEN, PRIVATE_KEY)
# Each match of a pattern that needs a name before the secret contains one of these words, in any case.
_WORDS_OF_NAMES = ("token", "pwd", "pass", "secret", "credential", "signature", "authorization", "webhook", "key", "bearer")
# Short texts in event records repeat: severities, names of hosts and files. One search takes 25 microseconds.
SHORT_CHARACTERS = 100


def is_secret(name: str) -> bool:
    """Return whether an option, variable or key with this name holds a secret."""
    return NAME.fullmatch(name) is not None


def holds(value: Any) -> bool:
    """Return whether `value`, a text or a list of texts, contains a secret."""
    return bool(covered(value) != value)


def covered(value: Any) -> Any:
    """`value`, nested lists and tables included, without its secrets."""
    if isinstance(value, str):
        return _covered_text(value) if len(value) <= SHORT_CHARACTERS else _covered_text.__wrapped__(value)
    if isinstance(value, list):
        return [covered(entry) for entry in value]
    if isinstance(value, Mapping):
        # Kubernetes writes variables as tables of a name and a value.
        hides_all = is_secret(str(value.get("name", "")))
        return {
            key: NOT_SHOWN if is_secret(str(key)) or (hides_all and key != "name") else covered(entry)
            for key, entry in value.items()
        }
    return value


def without_tokens(text: str) -> str:
    """Mask secrets in `text` that are recognized by their form, wherever they stand, and URL parameters."""
    if "://" in text and "@" in text:
        text = WEB_USER.sub(f"{NOT_SHOWN}@", _without_passwords(text))
    if "PRIVATE KEY" in text:
        text = PRIVATE_KEY.sub(NOT_SHOWN, text)
    text = TOKEN.sub(NOT_SHOWN, text)
    return QUERY.sub(rf"\1{NOT_SHOWN}", text) if _may_name_secret(text) else text


def _without_passwords(text: str) -> str:
    """`text` without the part from a user to the last @ of a word, because a password may look like another URL."""
    return _WORD.sub(_without_password, text)


def _without_password(match: re.Match[str]) -> str:
    word = match[0]
    end = word.rfind("@")
    while end >= 0 and word.startswith(_AT_DIGEST, end):
        end = word.rfind("@", 0, end)
    user = _URL_USER.search(word, 0, end) if end >= 0 else None
    return word if user is None else f"{word[: user.start()]}{NOT_SHOWN}{word[end:]}"


@functools.lru_cache(4096)
def _covered_text(text: str) -> str:
    text = without_tokens(text)
    if _may_name_secret(text):
        for pattern in (HEADER, VARIABLE, ENTRY, CAPITALS, YAML, ASSIGNMENT, OPTION):
            text = pattern.sub(rf"\1{NOT_SHOWN}", text)
    if "-u" in text:
        for pattern in (LOGIN, QUOTED_LOGIN):
            text = pattern.sub(rf"\1{NOT_SHOWN}", text)
    return text


def _may_name_secret(text: str) -> bool:
    """Whether a pattern with a name may match. The patterns take 25 microseconds; compiling them takes 8 ms."""
    # Other letters than ASCII's may be equal to ASCII's in some case, such as the Kelvin sign.
    return not text.isascii() or any(word in text.lower() for word in _WORDS_OF_NAMES)
