@echo off
rem The two commands of the Makefile for Windows: make quickstart, make test. Each does all of its own set-up.
setlocal
cd /d "%~dp0"
set "EXTRAS="
if "%1"=="quickstart" set "EXTRAS=lab"
if "%1"=="test" set "EXTRAS=all,dev,docs"
if "%1"=="test-fast" set "EXTRAS=all,dev,docs"
if not defined EXTRAS goto usage
if not exist .venv\Scripts\python.exe py -3 -m venv .venv || exit /b 1
if exist ".venv\.with-%EXTRAS%" goto run
echo Installing slimprompt[%EXTRAS%] and its dependencies into .venv (some minutes the first time) ...
.venv\Scripts\python -m pip install --quiet --disable-pip-version-check uv
.venv\Scripts\uv pip install --quiet --python .venv\Scripts\python.exe --editable ".[%EXTRAS%]" && goto installed
.venv\Scripts\python -m pip install --quiet --disable-pip-version-check --editable ".[%EXTRAS%]" || exit /b 1
:installed
type nul > ".venv\.with-%EXTRAS%"
:run
if "%1"=="quickstart" .venv\Scripts\slimprompt quickstart & exit /b
if "%1"=="test" .venv\Scripts\python -m pytest -n auto & exit /b
if "%1"=="test-fast" .venv\Scripts\python -m pytest -n auto -m "not slow" & exit /b
:usage
echo Usage: make quickstart ^| test ^| test-fast
exit /b 2
