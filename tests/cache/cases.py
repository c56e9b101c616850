"""Changes of programs, and what the cache must make of each: one entry of a table for a change.

A program is a text. `«a|b»` in it is `a` before the change and `b` after it; `# file: NAME` begins another file than
`flow.py`. The step is `train` of `flow.py`. If `flow.py` has a function `make`, the step is given its result, which is
made before the change, as a step before it would have; `remake` of it is made anew after the change.

To add a case, add an entry to a table of `_TABLES`: under "runs" the step must run again, under "cached" it must not. Each
case is also a check that the unchanged program hits from another folder and with another hash seed.
"""

# ruff: noqa: E501  # a program is one line, as long as it is

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, Literal

import attrs

Expected = Literal["runs", "cached"]


@attrs.frozen(kw_only=True)
class Case:
    """One change of a program."""

    name: str
    text: str
    expected: Expected

    @property
    def heavy(self) -> bool:
        """Whether it imports libraries that take seconds."""
        return re.search(r"\b(torch|pandas|sklearn|numpy)\b", self.text) is not None

    @property
    def makes(self) -> bool:
        """Whether the step has an input."""
        return "def make()" in self.text

    @property
    def remade(self) -> bool:
        """Whether the input is made anew after the change."""
        return "\n# remake" in self.text

    def files(self, version: Literal["before", "after"]) -> dict[str, str]:
        """File name → text of the program before or after the change."""
        text = re.sub(r"«([^|»]*)\|([^»]*)»", r"\1" if version == "before" else r"\2", self.text)
        parts = re.split(r"^# file: (\S+)\n", f"# file: flow.py\n{text}", flags=re.MULTILINE)[1:]
        return dict(zip(parts[::2], parts[1::2]))


_CODE: Final[Mapping[str, str]] = {
    "a number": "def train(): return «1|2»",
    "a text": "def train(): return '«a|b»'",
    "the type of a constant": "def train(): return «1|1.0»",
    "the sign of zero": "def train(): return «0.0|-0.0»",
    "bytes": "def train(): return b'«a|b»'",
    "an operator": "def train(): return 3 «+|*» 4 * len('x')",
    "a comparison": "def train(): return len('x') «<|<=» 1",
    "is and ==": "def train(x=1): return x «is|==» 1",
    "not": "def train(x=1): return «|not » x",
    "and and or": "def train(x=1, y=2): return x «and|or» y",
    "a builtin": "def train(): return «min|max»(1, 2)",
    "the order of two calls": "def a(): return 1\ndef b(): return 2\ndef train(): return «a() - b()|b() - a()»",
    "a keyword's name": "def train(): return dict(«a|b»=1)",
    "a default": "def train(x=«1|2»): return x",
    "a keyword-only default": "def train(*, x=«1|2»): return x",
    "a default that is a list": "def train(x=[1, [«2|3»]]): return x",
    "a default that is a set": "def train(x={'a', '«b|c»'}): return x",
    "a default that is a function": "def f(): return «1|2»\ndef train(x=f): return x()",
    "a default that is a lambda": "def train(x=lambda: «1|2»): return x()",
    "a default that is a class": "class C:\n  a = «1|2»\ndef train(x=C): return x.a",
    "one more parameter": "def train(x=1«|, y=2»): return x",
    "positional only": "def train(x=1«|, /»): return x",
    "a generator": "def train():\n  yield «1|2»",
    "yield from": "def g(): yield «1|2»\ndef train():\n  yield from g()",
    "async": "async def f(): return «1|2»\nasync def train(): return await f()",
    "an async generator": "async def f():\n  yield «1|2»\nasync def train():\n  async for x in f(): return x",
    "async with": "class C:\n  async def __aenter__(self): return «1|2»\n  async def __aexit__(self, *a): ...\n"
    "async def train():\n  async with C() as c: return c",
    "a lambda": "f = lambda x: x + «1|2»\ndef train(): return f(1)",
    "a lambda inside": "def train(): return (lambda x: x + «1|2»)(1)",
    "a comprehension": "def train(): return [x + «1|2» for x in range(3)]",
    "a comprehension's condition": "def train(): return {x for x in range(9) if x % «2|3»}",
    "a comprehension's function": "def f(x): return «1|2»\ndef train(): return {x: f(x) for x in range(3)}",
    "a generator expression": "N = «1|2»\ndef train(): return sum(x * N for x in range(3))",
    "match": "def train(x=1):\n  match x:\n    case «1|2»: return 1\n    case _: return 0",
    "match by class": "class A:\n  y = «1|2»\ndef train(x=1):\n  match x:\n    case A(): return 1",
    "match by value": "class A:\n  y = «1|2»\ndef train(x=1):\n  match x:\n    case A.y: return 1",
    "walrus": "def train():\n  if (n := «1|2») > 1: return n",
    "an f-string": "def train(x=1): return f'{x:.«1|2»f}'",
    "an f-string's conversion": "def train(x=1): return f'{x!«r|s»}'",
    "a star": "def train(x=(1, 2)): return max(«*|»x)",
    "a slice": "def train(x='abc'): return x[«1|2»:]",
    "a nested function": "def train():\n  def f(): return «1|2»\n  return f()",
    "a nested class": "def train():\n  class C:\n    def f(self): return «1|2»\n  return C().f()",
    "nonlocal": "def train():\n  x = 1\n  def f():\n    nonlocal x\n    x «+|-»= 1\n  f()\n  return x",
    "global": "X = 1\ndef train():\n  global X\n  X = «1|2»\n  return X",
    "a try": "def train():\n  try: return 1\n  except «ValueError|TypeError»: return 2",
    "what a try covers": "def f(): ...\ndef train():\n  «f()|pass»\n  try: «pass|f()»\n  except ValueError: return 2",
    "finally": "def train():\n  try: return 1\n  finally: print(«1|2»)",
    "a with": "import contextlib\ndef train():\n  with contextlib.suppress(«ValueError|TypeError»): return 1",
    "a loop's else": "def train():\n  for x in []: pass\n  else: return «1|2»",
    "a raise": "def train(): raise «ValueError|TypeError»",
    "an assert": "def train(x=1): assert x == «1|2»",
    "a del": "def train(x=1, y=2):\n  del «x|y»",
    "an exception of one's own": "class E(Exception):\n  code = «1|2»\ndef train(): raise E",
    "recursion": "def train(n=3): return n and train(n - «1|2»)",
    "functions that call each other": "def a(n): return b(n - 1)\ndef b(n): return n and a(n - «1|2»)\ndef train(): return a(3)",
}

_HELPERS: Final[Mapping[str, str]] = {
    "a function": "def f(): return «1|2»\ndef train(): return f()",
    "a function two calls away": "def g(): return «1|2»\ndef f(): return g()\ndef train(): return f()",
    "another module's function": "import h\ndef train(): return h.f()\n# file: h.py\ndef f(): return «1|2»\n",
    "an imported function": "from h import f\ndef train(): return f()\n# file: h.py\ndef f(): return «1|2»\n",
    "imported under another name": "from h import f as g\ndef train(): return g()\n# file: h.py\ndef f(): return «1|2»\n",
    "a module under another name": "import h as k\ndef train(): return k.f()\n# file: h.py\ndef f(): return «1|2»\n",
    "import a.b": "import a.b\ndef train(): return a.b.f()\n# file: a/__init__.py\n# file: a/b.py\ndef f(): return «1|2»\n",
    "import a.b as c": "import a.b as c\ndef train(): return c.f()\n# file: a/__init__.py\n# file: a/b.py\ndef f(): return «1|2»\n",
    "from a import b": "from a import b\ndef train(): return b.f()\n# file: a/__init__.py\n# file: a/b.py\ndef f(): return «1|2»\n",
    "from x import *": "from h import *\ndef train(): return f()\n# file: h.py\ndef f(): return «1|2»\n",
    "a re-export": "from a import f\ndef train(): return f()\n# file: a/__init__.py\nfrom a.b import f\n# file: a/b.py\ndef f(): return «1|2»\n",
    "a re-export by a star": "import a\ndef train(): return a.f()\n# file: a/__init__.py\nfrom .b import *\n# file: a/b.py\ndef f(): return «1|2»\n",
    "a relative import": "from a.b import f\ndef train(): return f()\n# file: a/__init__.py\n# file: a/b.py\nfrom .c import g\ndef f(): return g()\n# file: a/c.py\ndef g(): return «1|2»\n",
    "a namespace package": "import a.b\ndef train(): return a.b.f()\n# file: a/b.py\ndef f(): return «1|2»\n",
    "an import inside": "def train():\n  import h\n  return h.f()\n# file: h.py\ndef f(): return «1|2»\n",
    "from inside": "def train():\n  from h import f\n  return f()\n# file: h.py\ndef f(): return «1|2»\n",
    "an import inside of a submodule": "def train():\n  from a import b\n  return b.f()\n# file: a/__init__.py\n# file: a/b.py\ndef f(): return «1|2»\n",
    "the package around an import inside": "def train():\n  import a.b\n# file: a/__init__.py\nX = «1|2»\n# file: a/b.py\n",
    "a relative import inside": "from a.b import f\ndef train(): return f()\n# file: a/__init__.py\n# file: a/b.py\ndef f():\n  from .c import g\n  return g()\n# file: a/c.py\ndef g(): return «1|2»\n",
    "an import of an import inside": "def train():\n  import h\n# file: h.py\nfrom k import g\n# file: k.py\ndef g(): return «1|2»\n",
    "a conditional import": "try:\n  import missing_module as h\nexcept ImportError:\n  import h\ndef train(): return h.f()\n# file: h.py\ndef f(): return «1|2»\n",
    "a condition at import": "import h\ndef train(): return h.f()\n# file: h.py\nif «True|False»:\n  def f(): return 1\nelse:\n  def f(): return 2\n",
    "a module's constant": "import h\ndef train(): return h.N\n# file: h.py\nN = «1|2»\n",
    "a module handed on": "import h\ndef use(m): return m.f()\ndef train(): return use(h)\n# file: h.py\ndef f(): return «1|2»\n",
    "a module in a list": "import h\nALL = [h]\ndef train(): return ALL[0].f()\n# file: h.py\ndef f(): return «1|2»\n",
    "a module under a local name": "import h\ndef train():\n  m = h\n  return m.f()\n# file: h.py\ndef f(): return «1|2»\n",
    "a module's __dict__": "import h\ndef train(): return h.__dict__['f']()\n# file: h.py\ndef f(): return «1|2»\n",
    "vars of a module": "import h\ndef train(): return vars(h)['f']()\n# file: h.py\ndef f(): return «1|2»\n",
    "getattr by a literal": "import h\ndef train(): return getattr(h, 'f')()\n# file: h.py\ndef f(): return «1|2»\n",
    "getattr with a default": "import h\ndef train(): return getattr(h, 'f', None)()\n# file: h.py\ndef f(): return «1|2»\n",
    "getattr by a variable": "import h\ndef train(name='f'): return getattr(h, name)()\n# file: h.py\ndef f(): return «1|2»\n",
    "getattr of a submodule": "import a.b\ndef train(): return getattr(a.b, 'f')()\n# file: a/__init__.py\n# file: a/b.py\ndef f(): return «1|2»\n",
    "import_module by a literal": "import importlib\ndef train(): return importlib.import_module('h').f()\n# file: h.py\ndef f(): return «1|2»\n",
    "import_module imported": "from importlib import import_module\ndef train(): return import_module('h').f()\n# file: h.py\ndef f(): return «1|2»\n",
    "import_module imported inside": "def train():\n  from importlib import import_module\n  return import_module('h').f()\n# file: h.py\ndef f(): return «1|2»\n",
    "import_module of a relative name": "from a.b import f\ndef train(): return f()\n# file: a/__init__.py\n# file: a/b.py\nimport importlib\ndef f(): return importlib.import_module('.c', __package__).g()\n# file: a/c.py\ndef g(): return «1|2»\n",
    "import_module in a given package": "import importlib\ndef train(): return importlib.import_module('.c', 'a').g()\n# file: a/__init__.py\n# file: a/c.py\ndef g(): return «1|2»\n",
    "__import__": "def train(): return __import__('h').f()\n# file: h.py\ndef f(): return «1|2»\n",
    "globals by a literal": "def f(): return «1|2»\ndef train(): return globals()['f']()",
    "globals().get": "def f(): return «1|2»\ndef train(): return globals().get('f')()",
    "globals by a variable": "def f(): return «1|2»\ndef train(name='f'): return globals()[name]()",
    "sys.modules by a literal": "import sys, h\ndef train(): return sys.modules['h'].f()\n# file: h.py\ndef f(): return «1|2»\n",
    "sys.modules.get": "import sys, h\ndef train(): return sys.modules.get('h').f()\n# file: h.py\ndef f(): return «1|2»\n",
    "sys.modules of itself": "import sys\ndef f(): return «1|2»\ndef train(name='f'): return getattr(sys.modules[__name__], name)()",
    "eval of a literal": "def f(): return «1|2»\ndef train(): return eval('f()')",
    "exec of a literal": "def f(): return «1|2»\ndef train(): exec('print(f())')",
    "a module's __getattr__": "import h\ndef train(): return h.thing\n# file: h.py\ndef __getattr__(name): return «1|2»\n",
    "a lazy submodule": "import a\ndef train(): return a.b.f()\n# file: a/__init__.py\nimport importlib\ndef __getattr__(name): return importlib.import_module(f'a.{name}')\n# file: a/b.py\ndef f(): return «1|2»\n",
    "a lazy import in __getattr__": "import h\ndef train(): return h.f()\n# file: h.py\ndef __getattr__(name):\n  import k\n  return getattr(k, name)\n# file: k.py\ndef f(): return «1|2»\n",
    "a replaced function of one's own": "import h\nh.f = lambda: «1|2»\ndef train(): return h.f()\n# file: h.py\ndef f(): return 0\n",
    "a replaced function of a package": "import json\njson.dumps = lambda x: «1|2»\ndef train(): return json.dumps(1)",
    "a replaced function deep in a package": "import json.encoder\njson.encoder.encode_basestring = lambda x: «1|2»\ndef train(): return 1",
    "a replaced method of a package": "import fractions\ndef mine(self): return «1|2»\nfractions.Fraction.limit_denominator = mine\ndef train(): return fractions.Fraction(1, 3)",
    "a replaced method by setattr": "import fractions\ndef mine(self): return «1|2»\nsetattr(fractions.Fraction, 'limit_denominator', mine)\ndef train(x=1): return x",
    "a replacement in another module": "import patches, json\ndef train(): return json.loads('1')\n# file: patches.py\nimport json\ndef mine(x): return «1|2»\ndef apply(): json.loads = mine\napply()\n",
    "a replaced builtin": "import builtins\ndef mine(*a): return «1|2»\nbuiltins.print = mine\ndef train(): return print(1)",
    "a setting of a package": "import decimal\ndecimal.setcontext\ndecimal.DefaultContext_mine = «1|2»\ndef train(): return 1",
    "a subclass of a replaced class": "import argparse\nclass Mine(argparse.Action):\n  x = «1|2»\nargparse.Action = Mine\ndef train(): return argparse.Action",
    "an own module named like a method": "import h\ndef train(x=''): return h.strip(x.strip())\n# file: h.py\ndef strip(x): return «1|2»\n",
    "a wrapper's module": "from h import deco\n@deco\ndef train(): return 1\n# file: h.py\ndef deco(f):\n  def inner(): return f() + «1|2»\n  return inner\n",
}

_OBJECTS: Final[Mapping[str, str]] = {
    "a class with __members__ of its own": "class C:\n  @property\n  def __members__(self): return {}\n  x = «1|2»\ndef train(): return C().x",
    "beside a proxy without an object": "class Proxy:\n  __slots__ = ()\n  @property\n  def __dict__(self): raise RuntimeError('no request')\nrequest = Proxy()\ndef train(): return request or «1|2»",
    "a closure": "def make_it(n): return lambda: n\nf = make_it(«1|2»)\ndef train(): return f()",
    "a closure over a function": "def make_it(g): return lambda: g()\nf = make_it(lambda: «1|2»)\ndef train(): return f()",
    "two closures exchanged": "def make_it(n): return lambda: n\na, b = make_it(«1|2»), make_it(«2|1»)\ndef train(): return a() - b()",
    "two globals exchanged": "A, B = «1, 2|2, 1»\ndef train(): return A - B",
    "two functions exchanged": "def f(): return 1\ndef g(): return 2\nA, B = «f, g|g, f»\ndef train(): return A() - B()",
    "a decorator": "def deco(f):\n  def inner(): return f() + «1|2»\n  return inner\n@deco\ndef train(): return 1",
    "a decorated function": "import functools\ndef deco(f):\n  @functools.wraps(f)\n  def inner(): return f()\n  return inner\n@deco\ndef f(): return «1|2»\ndef train(): return f()",
    "a decorator with wraps": "import functools\ndef deco(f):\n  @functools.wraps(f)\n  def inner(): return f() + «1|2»\n  return inner\n@deco\ndef f(): return 1\ndef train(): return f()",
    "a decorator's argument": "def deco(n):\n  def outer(f):\n    def inner(): return f() + n\n    return inner\n  return outer\n@deco(«1|2»)\ndef f(): return 1\ndef train(): return f()",
    "a decorator class": "class Deco:\n  def __init__(self, f): self.f = f\n  def __call__(self): return self.f() + «1|2»\n@Deco\ndef f(): return 1\ndef train(): return f()",
    "a decorator class with update_wrapper": "import functools\nclass Deco:\n  def __init__(self, f):\n    self.f = f\n    functools.update_wrapper(self, f)\n  def __call__(self): return self.f() + «1|2»\n@Deco\ndef f(): return 1\ndef train(): return f()",
    "what a decorator class wraps": "class Deco:\n  def __init__(self, f): self.f = f\n  def __call__(self): return self.f()\n@Deco\ndef f(): return «1|2»\ndef train(): return f()",
    "an external decorator": "import contextlib\n@contextlib.contextmanager\ndef f(): yield «1|2»\ndef train():\n  with f() as x: return x",
    "lru_cache": "import functools\n@functools.lru_cache\ndef f(): return «1|2»\ndef train(): return f()",
    "lru_cache in a list": "import functools\n@functools.lru_cache\ndef f(): return «1|2»\nALL = [f]\ndef train(): return ALL[0]()",
    "lru_cache in an object": "import functools\nfrom types import SimpleNamespace\n@functools.lru_cache\ndef f(): return «1|2»\nALL = SimpleNamespace(f=f)\ndef train(): return ALL.f()",
    "cached_property": "import functools\nclass C:\n  @functools.cached_property\n  def x(self): return «1|2»\ndef train(): return C().x",
    "singledispatch": "import functools\n@functools.singledispatch\ndef f(x): return 0\n@f.register\ndef _(x: int): return «1|2»\ndef train(): return f(1)",
    "singledispatchmethod": "import functools\nclass C:\n  @functools.singledispatchmethod\n  def f(self, x): return 0\n  @f.register\n  def _(self, x: int): return «1|2»\ndef train(): return C().f(1)",
    "total_ordering": "import functools\n@functools.total_ordering\nclass C:\n  def __eq__(self, o): return True\n  def __lt__(self, o): return «1|2»\ndef train(): return C() <= C()",
    "a partial's argument": "import functools\ndef f(x): return x\ng = functools.partial(f, «1|2»)\ndef train(): return g()",
    "a partial's keyword": "import functools\ndef f(x): return x\ng = functools.partial(f, x=«1|2»)\ndef train(): return g()",
    "a partial's function": "import functools\ndef f(x): return x + «1|2»\ng = functools.partial(f, 1)\ndef train(): return g()",
    "a partial of a partial": "import functools\ndef f(x, y): return x\ng = functools.partial(functools.partial(f, «1|2»), 1)\ndef train(): return g()",
    "partialmethod": "import functools\nclass C:\n  def f(self, x): return x\n  g = functools.partialmethod(f, «1|2»)\ndef train(): return C().g()",
    "a bound method": "class C:\n  def f(self): return «1|2»\ng = C().f\ndef train(): return g()",
    "what a bound method is bound to": "class C:\n  def __init__(self, n): self.n = n\n  def f(self): return self.n\ng = C(«1|2»).f\ndef train(): return g()",
    "a bound builtin method": "join = '«,|;»'.join\ndef train(): return join('ab')",
    "a bound method of a dict": "get = {'a': «1|2»}.get\ndef train(): return get('a')",
    "an attribute of a function": "def f(): return f.rate\nf.rate = «1|2»\ndef train(): return f()",
    "an attribute of the step's function": "def train(): return train.rate\ntrain.rate = «1|2»",
    "a function as an attribute of a function": "def f(): ...\nf.helper = lambda: «1|2»\ndef train(): return f.helper()",
    "a method": "class C:\n  def f(self): return «1|2»\ndef train(): return C().f()",
    "a base class": "class A:\n  def f(self): return «1|2»\nclass B(A): ...\ndef train(): return B().f()",
    "a mixin": "class M:\n  def f(self): return «1|2»\nclass A: ...\nclass B(M, A): ...\ndef train(): return B().f()",
    "the order of bases": "class A:\n  x = 1\nclass B:\n  x = 2\nclass C(«A, B|B, A»): ...\ndef train(): return C.x",
    "super": "class A:\n  def f(self): return «1|2»\nclass B(A):\n  def f(self): return super().f()\ndef train(): return B().f()",
    "a metaclass": "class M(type):\n  def f(cls): return «1|2»\nclass C(metaclass=M): ...\ndef train(): return C.f()",
    "__init_subclass__": "class A:\n  def __init_subclass__(cls): cls.x = «1|2»\nclass B(A): ...\ndef train(): return B.x",
    "a class decorator": "def deco(c):\n  c.x = «1|2»\n  return c\n@deco\nclass C: ...\ndef train(): return C.x",
    "a property": "class C:\n  @property\n  def x(self): return «1|2»\ndef train(): return C().x",
    "a property's setter": "class C:\n  @property\n  def x(self): return 1\n  @x.setter\n  def x(self, v): self.y = «1|2»\ndef train(): C().x = 1",
    "a descriptor": "class D:\n  def __get__(self, o, t): return «1|2»\nclass C:\n  x = D()\ndef train(): return C().x",
    "a descriptor's state": "class D:\n  def __init__(self, n): self.n = n\n  def __get__(self, o, t): return self.n\nclass C:\n  x = D(«1|2»)\ndef train(): return C().x",
    "a class attribute": "class C:\n  x = «1|2»\ndef train(): return C.x",
    "a class attribute set later": "class C: ...\nC.x = «1|2»\ndef train(): return C.x",
    "a class attribute that is a set": "class C:\n  x = {'a', '«b|c»'}\ndef train(): return C.x",
    "a staticmethod": "class C:\n  @staticmethod\n  def f(): return «1|2»\ndef train(): return C.f()",
    "a classmethod": "class C:\n  @classmethod\n  def f(cls): return «1|2»\ndef train(): return C.f()",
    "a special method": "class C:\n  def __add__(self, o): return «1|2»\ndef train(): return C() + 1",
    "a special method that is a lambda": "class C:\n  __call__ = lambda self: «1|2»\ndef train(): return C()()",
    "a special method that is a partial": "import functools\ndef f(x): return x\nclass C:\n  __class_getitem__ = functools.partial(f, «1|2»)\ndef train(): return C[1]",
    "__hash__": "class C:\n  «__hash__ = None|x = 0»\n  x = 0\ndef train(): return hash(C())",
    "__slots__": "class C:\n  __slots__ = ('a'«|, 'b'»)\ndef train(): return C()",
    "__match_args__": "class C:\n  a = b = 1\n  __match_args__ = ('«a|b»',)\ndef train(x=1):\n  match x:\n    case C(y): return y",
    "the name of a class": "class «A|B»: ...\nX = «A|B»\ndef train(): return repr(X)",
    "a nested class's method": "class C:\n  class D:\n    def f(self): return «1|2»\ndef train(): return C.D().f()",
    "an enum": "import enum\nclass E(enum.Enum):\n  A = «1|2»\ndef train(): return E.A.value",
    "an enum's method": "import enum\nclass E(enum.Enum):\n  A = 1\n  def f(self): return «1|2»\ndef train(): return E.A.f()",
    "a flag": "import enum\nclass E(enum.Flag):\n  A = enum.auto()\n  B = «1|2»\ndef train(): return E.B",
    "an enum's member as a value": "import enum\nclass E(enum.Enum):\n  A = 1\n  B = 2\nX = E.«A|B»\ndef train(): return X",
    "a dataclass's default": "from dataclasses import dataclass\n@dataclass\nclass C:\n  x: int = «1|2»\ndef train(): return C().x",
    "a dataclass's default_factory": "from dataclasses import dataclass, field\n@dataclass\nclass C:\n  x: list = field(default_factory=lambda: [«1|2»])\ndef train(): return C().x",
    "a dataclass's field type": "from dataclasses import dataclass, fields\n@dataclass\nclass C:\n  x: «int|str» = 1\ndef train(): return fields(C)[0].type",
    "a dataclass's metadata": "from dataclasses import dataclass, field\n@dataclass\nclass C:\n  x: int = field(default=1, metadata={'a': «1|2»})\ndef train(): return C",
    "a dataclass's option": "from dataclasses import dataclass\n@dataclass(«order=True|frozen=True»)\nclass C:\n  x: int = 1\ndef train(): return C(1) > C(0)",
    "__post_init__": "from dataclasses import dataclass\n@dataclass\nclass C:\n  x: int = 1\n  def __post_init__(self): self.x = «1|2»\ndef train(): return C().x",
    "an attrs default": "import attrs\n@attrs.define\nclass C:\n  x: int = «1|2»\ndef train(): return C().x",
    "an attrs factory": "import attrs\n@attrs.define\nclass C:\n  x: int = attrs.field(factory=lambda: «1|2»)\ndef train(): return C().x",
    "an attrs validator": "import attrs\ndef check(i, a, v): return «1|2»\n@attrs.define\nclass C:\n  x: int = attrs.field(default=1, validator=check)\ndef train(): return C().x",
    "an attrs converter": "import attrs\n@attrs.define\nclass C:\n  x: int = attrs.field(default=1, converter=lambda v: v + «1|2»)\ndef train(): return C().x",
    "a NamedTuple's default": "from typing import NamedTuple\nclass C(NamedTuple):\n  x: int = «1|2»\ndef train(): return C().x",
    "a NamedTuple's fields": "from typing import NamedTuple\nclass C(NamedTuple):\n  «x|y»: int = 1\ndef train(): return C()",
    "a namedtuple": "from collections import namedtuple\nC = namedtuple('C', '«x|y»')\ndef train(): return C(1)",
    "a TypedDict's field": "from typing import TypedDict\nclass C(TypedDict):\n  x: «int|str»\ndef train(): return C.__annotations__",
    "a Protocol's method": "from typing import Protocol\nclass P(Protocol):\n  def f(self): return «1|2»\nclass C(P): ...\ndef train(): return C().f()",
    "a Generic": "from typing import Generic, TypeVar\nT = TypeVar('T')\nclass C(Generic[T]):\n  def f(self): return «1|2»\ndef train(): return C[int]().f()",
    "an abstract class": "import abc\nclass A(abc.ABC):\n  @abc.abstractmethod\n  def f(self): ...\nclass C(A):\n  def f(self): return «1|2»\ndef train(): return C().f()",
    "an annotation's class": "class C:\n  def f(self): return «1|2»\ndef train(c: C = None): return c.f()",
    "an annotation's class in a list": "class C:\n  def f(self): return «1|2»\ndef train(c: list[C] = ()): return c[0].f()",
    "an annotation's class as a text": "class C:\n  def f(self): return «1|2»\ndef train(c: 'dict[str, C]' = None): return c",
    "an annotation's optional class": "class C:\n  def f(self): return «1|2»\ndef train(c: C | None = None): return c.f()",
    "a contextmanager class": "class C:\n  def __enter__(self): return «1|2»\n  def __exit__(self, *a): ...\ndef train():\n  with C() as c: return c",
    "an iterator class": "class C:\n  def __iter__(self): return iter([«1|2»])\ndef train(): return list(C())",
    "an object's class": "class C:\n  def f(self): return «1|2»\nX = C()\ndef train(): return X.f()",
    "an object's state": "class C:\n  def __init__(self, n): self.n = n\nX = C(«1|2»)\ndef train(): return X.n",
    "an object's function": "class C: ...\nX = C()\nX.f = lambda: «1|2»\ndef train(): return X.f()",
    "an object that cannot be pickled": "import threading\nclass C:\n  def __init__(self, n):\n    self.lock, self.n = threading.Lock(), n\nX = C(«1|2»)\ndef train(): return X.n",
    "a list in an object that cannot be pickled": "import threading\nclass C:\n  def __init__(self, n):\n    self.lock, self.n = threading.Lock(), [n]\nX = C(«1|2»)\ndef train(): return X.n",
    "a function in an object that cannot be pickled": "import threading\nclass C:\n  def __init__(self, f):\n    self.lock, self.f = threading.Lock(), f\nX = C(lambda: «1|2»)\ndef train(): return X.f()",
    "an own object inside an object that cannot be pickled": "import threading\nclass D:\n  def f(self): return «1|2»\nclass C:\n  def __init__(self):\n    self.lock, self.d = threading.Lock(), D()\nX = C()\ndef train(): return X.d.f()",
    "a registry": "REGISTRY = {}\ndef register(f):\n  REGISTRY[f.__name__] = f\n  return f\n@register\ndef a(): return «1|2»\ndef train(name='a'): return REGISTRY[name]()",
    "a registry of classes": "class Base:\n  all = {}\n  def __init_subclass__(cls): Base.all[cls.__name__] = cls\nclass A(Base):\n  def f(self): return «1|2»\ndef train(name='A'): return Base.all[name]().f()",
    "type with three arguments": "def f(self): return «1|2»\nC = type('C', (), {'f': f})\ndef train(): return C().f()",
    "make_dataclass": "from dataclasses import make_dataclass\nC = make_dataclass('C', [('x', int, «1|2»)])\ndef train(): return C().x",
}

_VALUES: Final[Mapping[str, str]] = {
    f"a global {name}": f"{imports}X = {value}\ndef train(): return X"
    for name, imports, value in (
        ("int", "", "«1|2»"),
        ("bool", "", "«True|1»"),
        ("float", "", "«1.5|2.5»"),
        ("nan", "", "float('«nan|inf»')"),
        ("complex", "", "«1j|2j»"),
        ("None", "", "«None|0»"),
        ("text", "", "'«a|b»'"),
        ("bytes", "", "b'«a|b»'"),
        ("bytearray", "", "bytearray(b'«a|b»')"),
        ("memoryview", "", "memoryview(b'«a|b»')"),
        ("range", "", "range(«1|2»)"),
        ("slice", "", "slice(«1|2»)"),
        ("ellipsis", "", "«...|None»"),
        ("list", "", "[1, [«2|3»]]"),
        ("tuple", "", "(1, (2, «3|4»))"),
        ("list or tuple", "", "«[1, 2]|(1, 2)»"),
        ("dict", "", "{'a': {'b': «1|2»}}"),
        ("dict's order", "", "{«'a': 1, 'b': 2|'b': 2, 'a': 1»}"),
        ("dict's keys", "", "{(1, «2|3»): 0}"),
        ("set", "", "{'a', 'b', '«c|d»'}"),
        ("frozenset", "", "frozenset(('a', 'b', '«c|d»'))"),
        ("set of tuples", "", "{('a', 1), ('b', «2|3»)}"),
        ("set of frozensets", "", "{frozenset('ab'), frozenset('«cd|ce»')}"),
        ("dict of sets", "", "{'a': {'x', 'y', '«z|w»'}}"),
        ("set of functions", "def f(): return «1|2»\ndef g(): return 3\n", "{f, g}"),
        ("list of functions", "def f(): return «1|2»\n", "[f]"),
        ("dict of functions", "def f(): return «1|2»\n", "{'f': f}"),
        ("dict of lambdas", "", "{'f': lambda: «1|2»}"),
        ("defaultdict", "from collections import defaultdict\n", "defaultdict(lambda: «1|2»)"),
        ("defaultdict's content", "from collections import defaultdict\n", "defaultdict(list, a=[«1|2»])"),
        ("Counter", "from collections import Counter\n", "Counter('a«a|b»')"),
        ("OrderedDict", "from collections import OrderedDict\n", "OrderedDict(a=«1|2»)"),
        ("deque", "from collections import deque\n", "deque([1], maxlen=«1|2»)"),
        ("ChainMap", "from collections import ChainMap\n", "ChainMap({'a': «1|2»})"),
        ("mapping proxy", "from types import MappingProxyType\n", "MappingProxyType({'a': «1|2»})"),
        ("namespace", "from types import SimpleNamespace\n", "SimpleNamespace(a=«1|2»)"),
        ("namespace with a lambda", "from types import SimpleNamespace\n", "SimpleNamespace(f=lambda: «1|2»)"),
        ("subclass of dict", "class D(dict): ...\n", "D(a=«1|2»)"),
        ("subclass of list", "class D(list): ...\n", "D([«1|2»])"),
        ("regex", "import re\n", "re.compile('«a|b»')"),
        ("regex flag", "import re\n", "re.compile('a'«|, re.I»)"),
        ("Path", "from pathlib import Path\n", "Path('«a|b»')"),
        ("date", "import datetime\n", "datetime.date(2024, 1, «1|2»)"),
        ("timedelta", "import datetime\n", "datetime.timedelta(days=«1|2»)"),
        ("Decimal", "from decimal import Decimal\n", "Decimal('«1|2»')"),
        ("Decimal's digits", "from decimal import Decimal\n", "Decimal('«1|1.0»')"),
        ("Fraction", "from fractions import Fraction\n", "Fraction(«1|2», 3)"),
        ("UUID", "import uuid\n", "uuid.UUID(int=«1|2»)"),
        ("array", "import array\n", "array.array('i', [«1|2»])"),
        ("itemgetter", "import operator\n", "operator.itemgetter(«1|2»)"),
        ("iterator", "", "iter([«1|2»])"),
        ("count", "import itertools\n", "itertools.count(«1|2»)"),
        ("ContextVar", "import contextvars\n", "contextvars.ContextVar('x', default=«1|2»)"),
        ("ContextVar's value", "import contextvars\nV = contextvars.ContextVar('x')\nV.set(«1|2»)\n", "V"),
        ("function of a package", "import math\n", "math.«sin|cos»"),
        ("class of a package", "import collections\n", "collections.«deque|Counter»"),
        ("type", "", "«int|str»"),
        ("type alias", "", "list[«int|str»]"),
        ("type union", "", "int | «str|float»"),
        ("code", "", "compile('«1|2»', 'x', 'eval')"),
        ("weak reference", "import weakref\ndef f(): return «1|2»\n", "weakref.ref(f)"),
        ("exception", "", "ValueError(«1|2»)"),
        ("template", "import string\n", "string.Template('«a|b»')"),
        ("random generator", "import random\n", "random.Random(«1|2»)"),
        ("numpy array", "import numpy as np\n", "np.array([1, «2|3»])"),
        ("numpy dtype", "import numpy as np\n", "np.dtype('float«32|64»')"),
        ("numpy array of another type", "import numpy as np\n", "np.array([1, 2], 'int«32|64»')"),
        ("numpy scalar", "import numpy as np\n", "np.float64(«1|2»)"),
        ("numpy generator", "import numpy as np\n", "np.random.default_rng(«1|2»)"),
        ("numpy function", "import numpy as np\n", "np.«sin|cos»"),
        ("pandas frame", "import pandas as pd\n", "pd.DataFrame({'a': [«1|2»]})"),
        ("pandas column", "import pandas as pd\n", "pd.DataFrame({'«a|b»': [1]})"),
        ("torch tensor", "import torch\n", "torch.tensor([«1.0|2.0»])"),
        ("torch module", "import torch\ntorch.manual_seed(0)\n", "torch.nn.Linear(1, «1|2»)"),
        ("torch parameters", "import torch\ntorch.manual_seed(«0|1»)\n", "torch.nn.Linear(1, 1)"),
        ("torch dtype", "import torch\n", "torch.float«32|64»"),
    )
}

_EXTRA_VALUES: Final[Mapping[str, str]] = {
    "an attribute of a dict subclass": "class D(dict): ...\nX = D()\nX.rate = «1|2»\ndef train(): return X.rate",
    "a method of a dict subclass": "class D(dict):\n  def f(self): return «1|2»\nX = D()\ndef train(): return X.f()",
    "an attribute of a list subclass": "class D(list): ...\nX = D()\nX.rate = «1|2»\ndef train(): return X.rate",
    "a list of own objects": "class C:\n  def f(self): return «1|2»\nX = [C()]\ndef train(): return X[0].f()",
    "an own object as a dict's key": "class C:\n  def __hash__(self): return «1|2»\nX = {C(): 1}\ndef train(): return X",
    "an own torch module": "import torch\nclass M(torch.nn.Module):\n  def forward(self, x): return x + «1|2»\ndef train(): return M()(1)",
    "an own torch module as a value": "import torch\nclass M(torch.nn.Module):\n  def forward(self, x): return x + «1|2»\nX = M()\ndef train(): return X(1)",
    "an own torch data set": "import torch.utils.data as data\nclass D(data.Dataset):\n  def __getitem__(self, i): return «1|2»\ndef train(): return D()[0]",
    "an own autograd function": "import torch\nclass F(torch.autograd.Function):\n  @staticmethod\n  def forward(ctx, x): return x * «1|2»\ndef train(): return F.apply(1)",
}

_INPUTS: Final[Mapping[str, str]] = {
    "a class's method": "from h import M\ndef make(): return M()\ndef train(x): return x.f()\n# file: h.py\nclass M:\n  def f(self): return «1|2»\n",
    "a base class's method": "from h import M\ndef make(): return M()\ndef train(x): return x.f()\n# file: h.py\nclass B:\n  def f(self): return «1|2»\nclass M(B): ...\n",
    "a helper of a method": "from h import M\ndef make(): return M()\ndef train(x): return x.f()\n# file: h.py\nimport k\nclass M:\n  def f(self): return k.g()\n# file: k.py\ndef g(): return «1|2»\n",
    "in a list": "from h import M\ndef make(): return [1, M()]\ndef train(x): return x[1].f()\n# file: h.py\nclass M:\n  def f(self): return «1|2»\n",
    "in a dict": "from h import M\ndef make(): return {'m': M()}\ndef train(x): return x['m'].f()\n# file: h.py\nclass M:\n  def f(self): return «1|2»\n",
    "in an attribute": "from h import M\nclass Holder: ...\ndef make():\n  holder = Holder()\n  holder.m = M()\n  return holder\ndef train(x): return x.m.f()\n# file: h.py\nclass M:\n  def f(self): return «1|2»\n",
    "a function": "from h import f\ndef make(): return f\ndef train(x): return x()\n# file: h.py\ndef f(): return «1|2»\n",
    "a function's helper": "from h import f\ndef make(): return f\ndef train(x): return x()\n# file: h.py\ndef g(): return «1|2»\ndef f(): return g()\n",
    "a class as a value": "from h import M\ndef make(): return M\ndef train(x): return x().f()\n# file: h.py\nclass M:\n  def f(self): return «1|2»\n",
    "a bound method": "from h import M\ndef make(): return M().f\ndef train(x): return x()\n# file: h.py\nclass M:\n  def f(self): return «1|2»\n",
    "a partial": "import functools\nfrom h import f\ndef make(): return functools.partial(f, 1)\ndef train(x): return x()\n# file: h.py\ndef f(x): return x + «1|2»\n",
    "an lru_cache": "from h import f\ndef make(): return f\ndef train(x): return x()\n# file: h.py\nimport functools\n@functools.lru_cache\ndef f(): return «1|2»\n",
    "an enum's member": "from h import E\ndef make(): return E.A\ndef train(x): return x.f()\n# file: h.py\nimport enum\nclass E(enum.Enum):\n  A = 1\n  def f(self): return «1|2»\n",
    "a dataclass": "from h import D\ndef make(): return D()\ndef train(x): return x.f()\n# file: h.py\nfrom dataclasses import dataclass\n@dataclass\nclass D:\n  x: int = 1\n  def f(self): return «1|2»\n",
    "a namedtuple": "from h import D\ndef make(): return D()\ndef train(x): return x.f()\n# file: h.py\nfrom typing import NamedTuple\nclass D(NamedTuple):\n  x: int = 1\n  def f(self): return «1|2»\n",
    "a dict subclass": "from h import D\ndef make(): return D()\ndef train(x): return x.f()\n# file: h.py\nclass D(dict):\n  def f(self): return «1|2»\n",
    "a class of the script": "class M:\n  def f(self): return «1|2»\ndef make(): return M()\ndef train(x): return x.f()",
    "a nested class": "from h import M\ndef make(): return M.N()\ndef train(x): return x.f()\n# file: h.py\nclass M:\n  class N:\n    def f(self): return «1|2»\n",
    "a local class": "from h import build\ndef make(): return build()\ndef train(x): return x.f()\n# file: h.py\ndef build():\n  class M:\n    def f(self): return «1|2»\n  return M()\n",
    "a lambda": "from h import build\ndef make(): return build()\ndef train(x): return x()\n# file: h.py\ndef g(): return «1|2»\ndef build(): return lambda: g()\n",
    "a module that is imported only where the value is made": "def make():\n  from h import M\n  return M()\ndef train(x): return x.f()\n# file: h.py\nclass M:\n  def f(self): return «1|2»\n",
    "a class that is gone": "import h\ndef make(): return h.M()\ndef train(x): return x.f()\n# file: h.py\nclass «M|N»:\n  def f(self): return 1\n",
    "a module that is gone": "def make():\n  import h\n  return h.M()\ndef train(x): return x.f()\n# file: «h|k».py\nclass M:\n  def f(self): return 1\n",
    "a torch module": "from h import M\ndef make(): return M()\ndef train(x): return x(1)\n# file: h.py\nimport torch\nclass M(torch.nn.Module):\n  def forward(self, x): return x + «1|2»\n",
    "an object in a torch module": "from h import M\ndef make(): return M()\ndef train(x): return x(1)\n# file: h.py\nimport torch\nclass Config:\n  def f(self): return «1|2»\nclass M(torch.nn.Module):\n  def __init__(self):\n    super().__init__()\n    self.layer, self.config = torch.nn.Linear(1, 1), Config()\n",
    "a dict with a torch module": "from h import M\ndef make(): return {'m': M(), 'n': 1}\ndef train(x): return x['m'](1)\n# file: h.py\nimport torch\nclass M(torch.nn.Module):\n  def forward(self, x): return x + «1|2»\n",
    "an own estimator": "from h import M\ndef make(): return M()\ndef train(x): return x.predict(1)\n# file: h.py\nfrom sklearn.base import BaseEstimator\nclass M(BaseEstimator):\n  def predict(self, x): return «1|2»\n",
    "an own step in a scikit-learn pipeline": "from h import f\nfrom sklearn.preprocessing import FunctionTransformer\ndef make(): return FunctionTransformer(f)\ndef train(x): return x.transform(1)\n# file: h.py\ndef f(x): return «1|2»\n",
    "a numpy array of own objects": "import numpy as np\nfrom h import M\ndef make(): return np.array([M()], dtype=object)\ndef train(x): return x[0].f()\n# file: h.py\nclass M:\n  def f(self): return «1|2»\n",
    "elements of a list that was split": "from h import M\n# split\ndef make(): return [M(), M()]\ndef train(x): return x[0].f()\n# file: h.py\nclass M:\n  def f(self): return «1|2»\n",
    "another value": "def make(): return «1|2»\n# remake\ndef train(x): return x",
    "another set": "def make(): return {'a', '«b|c»'}\n# remake\ndef train(x): return x",
    "another set in an object": "class C: ...\ndef make():\n  c = C()\n  c.x = {'a', '«b|c»'}\n  return c\n# remake\ndef train(x): return x",
    "the name of a file": "from pathlib import Path\ndef make():\n  Path('«a|b»').write_text('x')\n  return Path('«a|b»')\n# remake\ndef train(x): return x.name",
    "the content of a file": "from pathlib import Path\ndef make():\n  Path('a').write_text('«a|b»')\n  return Path('a')\n# remake\ndef train(x): return x.name",
}


def _dist(name: str, files: str, version: str = "«1.0|1.1»") -> str:
    record = "\n".join(f"{file},sha256=x,1" for file in files.split())
    return f"# file: site-packages/{name}-{version}.dist-info/RECORD\n{record}\n"


_PKG: Final = "# file: site-packages/pkg/__init__.py\ndef f(): return 1\nclass C:\n  x = 1\n"
_PACKAGES: Final[Mapping[str, str]] = {
    "a package without __version__": "import pkg\ndef train(): return pkg.f()\n"
    + _PKG
    + _dist("pkg", "pkg/__init__.py"),
    "an imported function": "from pkg import f\ndef train(): return f()\n" + _PKG + _dist("pkg", "pkg/__init__.py"),
    "an imported class": "from pkg import C\ndef train(): return C.x\n" + _PKG + _dist("pkg", "pkg/__init__.py"),
    "an import inside": "def train():\n  import pkg\n  return pkg.f()\n" + _PKG + _dist("pkg", "pkg/__init__.py"),
    "from inside": "def train():\n  from pkg import f\n  return f()\n" + _PKG + _dist("pkg", "pkg/__init__.py"),
    "import_module": "import importlib\ndef train(): return importlib.import_module('pkg').f()\n"
    + _PKG
    + _dist("pkg", "pkg/__init__.py"),
    "another name than the package's": "import pkg\ndef train(): return pkg.f()\n"
    + _PKG
    + _dist("scikit_pkg", "pkg/__init__.py"),
    "a name with another spelling": "import my_pkg\ndef train(): return my_pkg.f()\n# file: site-packages/my_pkg/__init__.py\ndef f(): ...\n"
    + _dist("My.Pkg", "my_pkg/__init__.py"),
    "another distribution of that name": "import pkg\ndef train(): return pkg.f()\n"
    + _PKG
    + _dist("pkg", "other/__init__.py", "1.0")
    + _dist("zpkg", "pkg/__init__.py"),
    "a single module": "import mod\ndef train(): return mod.f()\n# file: site-packages/mod.py\ndef f(): ...\n"
    + _dist("mod", "mod.py"),
    "a base class of a package": "import pkg\nclass D(pkg.C): ...\ndef train(): return D.x\n"
    + _PKG
    + _dist("pkg", "pkg/__init__.py"),
    "an object of a package": "import pkg\nX = pkg.C()\ndef train(): return X.x\n"
    + _PKG
    + _dist("pkg", "pkg/__init__.py"),
    "a package in a helper": "import h\ndef train(): return h.f()\n# file: h.py\nimport pkg\ndef f(): return pkg.f()\n"
    + _PKG
    + _dist("pkg", "pkg/__init__.py"),
    "a package in a helper imported inside": "def train():\n  import h\n# file: h.py\nimport pkg\n"
    + _PKG
    + _dist("pkg", "pkg/__init__.py"),
    "a decorator of a package": "from pkg import deco\n@deco\ndef train(): ...\n# file: site-packages/pkg/__init__.py\nimport functools\ndef deco(f):\n  @functools.wraps(f)\n  def inner(): return f()\n  return inner\n"
    + _dist("pkg", "pkg/__init__.py"),
    "what a decorator of a package wraps": "from pkg import deco\n@deco\ndef train(): return «1|2»\n# file: site-packages/pkg/__init__.py\ndef deco(f):\n  def inner(): return f()\n  return inner\n"
    + _dist("pkg", "pkg/__init__.py", "1.0"),
    "what a decorator of a package is given": "from pkg import deco\n@deco(«1|2»)\ndef train(): return 1\n# file: site-packages/pkg/__init__.py\ndef deco(n):\n  def outer(f):\n    def inner(): return f() + n\n    return inner\n  return outer\n"
    + _dist("pkg", "pkg/__init__.py", "1.0"),
    "an input from a part of a namespace package": "import ns.part\ndef make(): return ns.part.C()\ndef train(x): return x\n# file: site-packages/ns/part/__init__.py\nclass C: ...\n"
    + _dist("ns_part", "ns/part/__init__.py"),
    "an input from a module of a part of a namespace package": "import ns.part.m\ndef make(): return ns.part.m.C()\ndef train(x): return x\n# file: site-packages/ns/part/__init__.py\n# file: site-packages/ns/part/m.py\nclass C: ...\n"
    + _dist("ns_part", "ns/part/__init__.py"),
    "a part of a namespace package": "import ns.part\ndef train(): return ns.part.f()\n# file: site-packages/ns/part/__init__.py\ndef f(): ...\n"
    + _dist("ns_part", "ns/part/__init__.py"),
    "an egg-info": "import pkg\ndef train(): return pkg.f()\n"
    + _PKG
    + "# file: site-packages/pkg-«1.0|1.1»-py3.11.egg-info/top_level.txt\npkg\n",
    "an egg-info without a version": "import pkg\ndef train(): return pkg.f()\n"
    + _PKG
    + "# file: site-packages/pkg.egg-info/top_level.txt\npkg\n# file: site-packages/pkg.egg-info/PKG-INFO\nName: pkg\nVersion: «1.0|1.1»\n",
    "a package from a folder, installed anew": "import pkg\ndef train(): return pkg.f()\n"
    + _PKG
    + '# file: site-packages/pkg-1.0.dist-info/direct_url.json\n{"url": "file:///x"}\n# file: site-packages/pkg-1.0.dist-info/RECORD\npkg/__init__.py,sha256=«a|b»,1\n',
    "a package without a distribution": "import pkg\ndef train(): return pkg.f()\n# file: site-packages/pkg/__init__.py\nfrom pkg.b import f\n# file: site-packages/pkg/b.py\ndef f(): return «1|2»\n",
    "a module without a distribution": "import mod\ndef train(): return mod.f()\n# file: site-packages/mod.py\ndef f(): return «1|2»\n",
    "a package that is installed now": "def train():\n  try:\n    import pkg\n  except ImportError: ...\n# file: site-packages/«none|pkg»/__init__.py\nx = 1\n",
    "a value's package": "import pkg\ndef make(): return pkg.C()\ndef train(x): return x.x\n"
    + _PKG
    + _dist("pkg", "pkg/__init__.py"),
    "a package of an object inside a value": "import pkg\nclass D: ...\ndef make():\n  d = D()\n  d.c = pkg.C()\n  return d\ndef train(x): return x.c\n"
    + _PKG
    + _dist("pkg", "pkg/__init__.py"),
    "which of two packages": "import «pkg|mod» as p\ndef train(): return p.f()\n"
    + _PKG
    + "# file: site-packages/mod.py\ndef f(): ...\n",
    "which module of a package": "from pkg.«a|b» import f\ndef train(): return f()\n# file: site-packages/pkg/__init__.py\n# file: site-packages/pkg/a.py\ndef f(): return 1\n# file: site-packages/pkg/b.py\ndef f(): return 2\n",
    "an editable install": "import ed\ndef train(): return ed.f()\n# file: src/ed/__init__.py\ndef f(): return «1|2»\n# file: site-packages/ed-1.0.dist-info/RECORD\n__editable__.ed.pth,,\n",
}

_HIT_CODE: Final[Mapping[str, str]] = {
    "a comment in a module that is imported inside": "def train():\n  from h import f\n  return f()\n# file: h.py\n# «a|b»\ndef f(): return 1\n",
    "a comment in a package's module that is imported inside": "def train():\n  from a.h import f\n  return f()\n# file: a/__init__.py\n# «a|b»\n# file: a/h.py\n# «a|b»\ndef f(): return 1\n",
    "a comment in a namespace's module that is imported inside": "def train():\n  from a.h import f\n  return f()\n# file: a/h.py\n# «a|b»\ndef f(): return 1\n",
    "a comment": "def train():\n«|  # a comment\n»  return 1",
    "a docstring": "def train():\n«|  '''Doc.'''\n»  return 1",
    "another docstring": "def train():\n  '''«Doc|Other».'''\n  return 1",
    "a class's docstring": "class C:\n  '''«Doc|Other».'''\n  x = 1\ndef train(): return C.x",
    "a module's docstring": "«|'''Doc.'''\n»def train(): return 1",
    "a helper's docstring": "def f():\n«|  '''Doc.'''\n»  return 1\ndef train(): return f()",
    "blank lines": "X = 1\n«|\n\n»def train():\n«|\n»  return X",
    "spaces": "def train(): return max(1,«| »2)",
    "quotes": "def train(): return «'a'|\"a\"»",
    "parentheses": "def train(): return «1 + len('a')|(1 + len('a'))»",
    "a wrapped call": "def train(): return max(«1, 2|\n    1,\n    2,\n  »)",
    "a wrapped condition": "def train(x=1):\n  if «x > 0 and x < 2|(\n    x > 0\n    and x < 2\n  )»: return 1",
    "a wrapped try": "def f(a, b): ...\ndef train():\n  try:\n    f(«1, 2|\n      1,\n      2,\n    »)\n  except ValueError:\n    return «f(1, 2)|f(\n      1, 2)»",
    "an annotation": "def train(x«: int|: str» = 1)«| -> int»: return x",
    "an annotation of a variable": "def train():\n  x«|: int» = 1\n  return x",
    "a type comment": "def train():\n  x = 1«|  # type: int»\n  return x",
    "noqa": "def train():\n  return 1«|  # noqa: E501»",
    "__future__ annotations": "«|from __future__ import annotations\n»def train(x: int = 1): return x",
    "an unused function": "def f(): return «1|2»\ndef train(): return 1",
    "an unused constant": "X = «1|2»\ndef train(): return 1",
    "an unused class": "class C:\n  x = «1|2»\ndef train(): return 1",
    "an unused import": "«|import json\n»def train(): return 1",
    "the order of functions": "«def f(): return 1\ndef g(): return 2|def g(): return 2\ndef f(): return 1»\ndef train(): return f() + g()",
    "the order of methods": "class C:\n«  def f(self): return 1\n  def g(self): return 2|  def g(self): return 2\n  def f(self): return 1»\ndef train(): return C().f()",
    "the order of imports": "«import h\nimport k|import k\nimport h»\ndef train(): return h.f() + k.f()\n# file: h.py\ndef f(): return 1\n# file: k.py\ndef f(): return 2\n",
    "another function of a helper module": "import h\ndef train(): return h.f()\n# file: h.py\ndef f(): return 1\ndef g(): return «1|2»\n",
    "an unrelated module": "import h, k\ndef train(): return h.f()\n# file: h.py\ndef f(): return 1\n# file: k.py\ndef f(): return «1|2»\n",
    "an unrelated module inside": "def train(): return 1\ndef other():\n  import k\n# file: k.py\nX = «1|2»\n",
    "another step": "def train(): return 1\ndef evaluate(): return «1|2»",
    "a main block": "def train(): return 1\nif __name__ == '__main__':\n  print(«1|2»)",
    "another way of importing": "«from h import f|import h\nf = h.f»\ndef train(): return f()\n# file: h.py\ndef f(): return 1\n",
    "an imported function's module renamed": "from «h|helpers» import f\ndef train(): return f()\n# file: «h|helpers».py\ndef f(): return 1\n",
    "a helper moved to another file": "«def g(): return 1\ndef f(): return g()|from h import f»\ndef train(): return f()\n# file: h.py\ndef g(): return 1\ndef f(): return g()\n",
    "a method named like an unrelated function": "def fit(): return «1|2»\ndef train(x=''): return x.fit()",
    "a class's annotation": "class C:\n  x: «int|str»\n  y = 1\ndef train(): return C.y",
    "a setdefault of the order of a set": "X = {«'a', 'b'|'b', 'a'»}\ndef train(): return X",
    "the order of a set in the code": "def train(x='a'): return x in {«'a', 'b'|'b', 'a'»}",
    "a logger's name": "import logging\nlog = logging.getLogger('«a|b»')\ndef train(): log.info('x')",
    "an object's class's docstring": "class C:\n  '''«A|B»'''\n  def f(self): return 1\nX = C()\ndef train(): return X.f()",
    "a lock": "import threading\nLOCK = threading.Lock()\ndef train():\n  with LOCK: return 1\n# «a|b»",
    "a time stamp that is not used": "import time\nSTARTED = time.time()\ndef train(): return 1\n# «a|b»",
    "an object with a lock": "import threading\nclass C:\n  def __init__(self): self.lock = threading.Lock()\nX = C()\ndef train(): return X\n# «a|b»",
    "a patch of a package that was not made": "import json\ndef mine(x): return «1|2»\ndef apply(): json.loads = mine\ndef train(): return 1",
    "a setting of an own object": "class C: ...\nX = C()\nX.rate = «1|2»\ndef train(): return 1",
    "a cached function's cache": "import functools\n@functools.lru_cache\ndef f(): return 1\n«|f()\n»def train(): return f()",
    "a folder's other file": "import a.b\ndef train(): return a.b.f()\n# file: a/__init__.py\n# file: a/b.py\ndef f(): return 1\n# file: a/c.py\nX = «1|2»\n",
    "getattr of data": "class C: ...\ndef train(x=C(), name='a'): return getattr(x, name, 0)\n# «a|b»",
    "a literal getattr beside": "import h\ndef train(): return getattr(h, 'f')()\n# file: h.py\ndef f(): return 1\ndef g(): return «1|2»\n",
    "a literal globals beside": "def f(): return 1\ndef g(): return «1|2»\ndef train(): return globals()['f']()",
    "hasattr": "import h\ndef train(): return hasattr(h, 'f')\n# file: h.py\ndef f(): return 1\ndef g(): return «1|2»\n",
    "a name in sys.modules": "import sys\ndef train(): return 'h' in sys.modules\n# file: h.py\nX = «1|2»\n",
    "a recursive function's comment": "def train(n=3):\n«|  # down\n»  return n and train(n - 1)",
}

_HIT_NAMES: Final[Mapping[str, str]] = {
    "the step, with a helper": "def f(): return 1\ndef «train|fit»(): return f()\n«|train = fit\n»",
    "the step, with a constant": "N = 1\ndef «train|fit»(): return N\n«|train = fit\n»",
    "the step, with a class": "class C:\n  def f(self): return 1\ndef «train|fit»(): return C().f()\n«|train = fit\n»",
    "the step, with a module": "import h\ndef «train|fit»(): return h.f()\n«|train = fit\n»# file: h.py\ndef f(): return 1\n",
    "the step, with a nested function": "def «train|fit»():\n  def f(): return 1\n  return f()\n«|train = fit\n»",
    "the step, with a package": "import json\ndef «train|fit»(): return json.dumps(1)\n«|train = fit\n»",
    "the step's file": "from «steps|jobs» import train\n# file: «steps|jobs».py\nN = 2\nclass C:\n  def f(self): return N\ndef f(): return C().f()\ndef train(x: C = None): return f()\n",
    "the step's file, with an import inside": "from «steps|jobs» import train\n# file: «steps|jobs».py\ndef train():\n  import h\n  return h.f()\n# file: h.py\ndef f(): return 1\n",
    "the step's file, with globals": "from «steps|jobs» import train\n# file: «steps|jobs».py\ndef f(): return 1\ndef train(n='f'): return globals()[n]()\n",
    "the folder of the step's file": "from «a|b».steps import train\n# file: «a|b»/__init__.py\n# file: «a|b»/steps.py\nfrom .h import f\ndef train(): return f()\n# file: «a|b»/h.py\nN = 1\ndef f(): return N\n",
}

_HIT_INPUTS: Final[Mapping[str, str]] = {
    "an input's class's comment": "from h import M\ndef make(): return M()\ndef train(x): return x.f()\n# file: h.py\nclass M:\n  def f(self):\n«|    # a comment\n»    return 1\n",
    "another class of an input's module": "from h import M\ndef make(): return M()\ndef train(x): return x.f()\n# file: h.py\nclass M:\n  def f(self): return 1\nclass N:\n  x = «1|2»\n",
    "a set made anew": "def make(): return {'a', 'b', 'c', 'd', 'e'}\n# remake\ndef train(x): return x\n# «a|b»",
    "a frozenset made anew": "def make(): return frozenset('abcdefgh')\n# remake\ndef train(x): return x\n# «a|b»",
    "a set in a dict made anew": "def make(): return {'x': {'a', 'b', 'c', 'd', 'e'}, 'y': (1, {'p', 'q', 'r'})}\n# remake\ndef train(x): return x\n# «a|b»",
    "a set in an object made anew": "class C: ...\ndef make():\n  c = C()\n  c.x = {'a', 'b', 'c', 'd', 'e'}\n  return c\n# remake\ndef train(x): return x\n# «a|b»",
    "a set of tuples made anew": "def make(): return {('a', 1), ('b', 2), ('c', 3), ('d', frozenset('xyz'))}\n# remake\ndef train(x): return x\n# «a|b»",
    "a list of sets, split, made anew": "# split\ndef make(): return [{'a', 'b', 'c', 'd'}, {'e', 'f', 'g'}]\n# remake\ndef train(x): return x\n# «a|b»",
    "a set of frozensets made anew": "def make(): return {frozenset('abc'), frozenset('def'), frozenset('ghi')}\n# remake\ndef train(x): return x\n# «a|b»",
    "a dict of functions made anew": "def f(): return 1\ndef make(): return {'f': f}\n# remake\ndef train(x): return x\n# «a|b»",
    "an own object made anew": "class C:\n  def __init__(self): self.x = 1\ndef make(): return C()\n# remake\ndef train(x): return x\n# «a|b»",
    "a torch module made anew": "import torch\ndef make():\n  torch.manual_seed(0)\n  return torch.nn.Linear(2, 2)\n# remake\ndef train(x): return x\n# «a|b»",
    "an array made anew": "import numpy as np\ndef make(): return np.arange(9)\n# remake\ndef train(x): return x\n# «a|b»",
    "a frame made anew": "import pandas as pd\ndef make(): return pd.DataFrame({'a': [1, 2]})\n# remake\ndef train(x): return x\n# «a|b»",
    "a file made anew": "from pathlib import Path\ndef make():\n  Path('a').write_text('x')\n  return Path('a')\n# remake\ndef train(x): return x\n# «a|b»",
}

_HIT_PACKAGES: Final[Mapping[str, str]] = {
    "a package that is not used": "import pkg, mod\ndef train(): return mod.f()\n"
    + _PKG
    + _dist("pkg", "pkg/__init__.py")
    + "# file: site-packages/mod.py\ndef f(): ...\n"
    + _dist("mod", "mod.py", "1.0"),
    "an input from another part of a namespace package": "import ns.part, ns.more\ndef make(): return ns.part.C()\ndef train(x): return x\n# file: site-packages/ns/part/__init__.py\nclass C: ...\n# file: site-packages/ns/more/__init__.py\n"
    + _dist("ns_part", "ns/part/__init__.py", "1.0")
    + _dist("ns_more", "ns/more/__init__.py"),
    "another part of a namespace package": "import ns.part, ns.more\ndef train(): return ns.part.f()\n# file: site-packages/ns/part/__init__.py\ndef f(): ...\n# file: site-packages/ns/more/__init__.py\n"
    + _dist("ns_part", "ns/part/__init__.py", "1.0")
    + _dist("ns_more", "ns/more/__init__.py"),
    "a package from a folder, installed anew and the same": "import pkg\ndef train(): return pkg.f()\n"
    + _PKG
    + '# file: site-packages/pkg-1.0.dist-info/direct_url.json\n{"url": "file:///«x|y»"}\n# file: site-packages/pkg-1.0.dist-info/RECORD\npkg/__init__.py,sha256=a,1\npkg/__pycache__/x.pyc,sha256=«a|b»,1\n../../bin/pkg,sha256=«a|b»,1\npkg-1.0.dist-info/direct_url.json,sha256=«a|b»,1\n',
    "a file of a package beside its code": "import pkg\ndef train(): return pkg.f()\n"
    + _PKG
    + _dist("pkg", "pkg/__init__.py", "1.0")
    + "# file: site-packages/pkg/data.txt\n«a|b»\n",
    "an edit of an installed package of the same version": "import pkg\ndef train(): return pkg.f()\n# file: site-packages/pkg/__init__.py\ndef f(): return «1|2»\n"
    + _dist("pkg", "pkg/__init__.py", "1.0"),
}

_TABLES: Final[Mapping[Expected, Mapping[str, Mapping[str, str]]]] = {
    "runs": {
        "code": _CODE,
        "reached": _HELPERS,
        "object": _OBJECTS,
        "value": {**_VALUES, **_EXTRA_VALUES},
        "input": _INPUTS,
        "package": _PACKAGES,
    },
    "cached": {"same": _HIT_CODE, "renamed": _HIT_NAMES, "input": _HIT_INPUTS, "package": _HIT_PACKAGES},
}


def cases() -> Iterator[Case]:
    """All cases."""
    for expected, groups in _TABLES.items():
        for group, table in groups.items():
            for name, text in table.items():
                yield Case(name=f"{group}: {name}", text=text, expected=expected)
